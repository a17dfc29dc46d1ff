"""Traces for the cold start of the tiny model: problems solved by programs, right only part of the time.

The first part of the curriculum teaches to copy numbers into programs and results into answers, the last part bad habits: to
guess the answer, to leave out a step of a program or to take another sign, and to answer something else than what the program has
printed. The output of programs in a trace is what Python computes.
"""

import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agentic.retool import prompts
from agentic.retool.tiny.task import Task, sample_task
from agentic.retool.traces import demonstration_of
from vime.agent.interpreter import NO_OUTPUT
from vime.tiny.demonstration import filled
from vime.types import Sample

HABIT_PROGRESS = 0.8
"""The progress at which the last part begins."""
TWO_PROGRAMS_SHARE = 0.5
"""Share of solved multi-step problems that use two programs, the second reusing a name of the first."""
CODE = "<code>\n{program}\n</code>"
ANSWER = "<answer>\n\\boxed{{{answer}}}\n</answer>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The share of right ones of each decision of a trace. Shares(writes_code=0.5, right_program=0.6, reads_output=0.7)"""

    writes_code: float
    right_program: float
    reads_output: float


SKILL = Shares(writes_code=0.98, right_program=0.97, reads_output=0.98)
HABITS = Shares(writes_code=0.4, right_program=0.6, reads_output=0.7)


def trace(task: Task, rng: random.Random, *, shares: Shares) -> str:
    """The response to a problem, with the output of its programs."""
    if rng.random() >= shares.writes_code:
        return ANSWER.format(answer=guess(rng))
    programs = right_programs(task, rng) if rng.random() < shares.right_program else [wrong_program(task, rng)]
    names: dict[str, object] = {}
    text = ""
    for program in programs:
        printed = run(program, names)
        text += CODE.format(program=program) + prompts.INTERPRETED.format(output=printed or NO_OUTPUT)
    answer = printed if printed and rng.random() < shares.reads_output else guess(rng)
    return text + ANSWER.format(answer=answer)


def right_programs(task: Task, rng: random.Random) -> list[str]:
    """Programs that compute the answer and print it."""
    if task.last_step and rng.random() < TWO_PROGRAMS_SHARE:
        return [f"x = {task.product}", f"print(x{task.last_step})"]
    return [f"print({task.product}{task.last_step})"]


def wrong_program(task: Task, rng: random.Random) -> str:
    """A program that forgets a step, takes another sign, or prints nothing."""
    forgets = f"print({task.product})" if task.last_step else f"print({task.numbers[0]})"
    other_sign = f"print({task.product.replace('*', '+')}{task.last_step})"
    return rng.choice([forgets, other_sign, f"x = {task.product}"])


def run(program: str, names: dict[str, object]) -> str:
    """The output of one of these programs."""
    name, _, value = program.rpartition(" = ")
    names[name or "printed"] = number = eval(value.removeprefix("print"), {}, names)
    return "" if name else str(number)


def guess(rng: random.Random) -> str:
    """A number as long as an answer."""
    return str(rng.randrange(10**7, 10**8))


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    tasks = [sample_task(rng, split="train") for _ in range(300)]
    return [task.question + trace(task, rng, shares=HABITS) for task in tasks]


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    rng = random.Random(f"retool/{seed}/{step}")
    shares = HABITS if step / num_steps >= HABIT_PROGRESS else SKILL

    def one() -> Task:
        return sample_task(rng, split="train")

    return filled(
        lambda: [demonstration_of((task := one()).question, trace(task, rng, shares=shares), tokenizer=tokenizer)],
        num_tokens=num_tokens,
    )
