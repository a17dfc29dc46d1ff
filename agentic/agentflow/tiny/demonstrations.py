"""Generated demonstrations for the supervised training of AgentFlow's two tiny models.

The frozen model is shown only correct replies: to write the command, to write the program, to judge the steps and to copy the
answer. The planner is shown how to look up and to copy, too, but its choice of a tool is random and mostly wrong: it asks the
generator, which guesses, or computes with a price that it does not know. So the planner often fails, and reinforcement learning
can improve it. A batch depends on the seed and the step only.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agentic.agentflow.tiny import catalogue, prompts
from agentic.agentflow.tiny import task as tiny_task
from agentic.agentflow.tiny.task import GENERATOR, LOOKUP, PYTHON, Task
from vime.tiny.demonstration import Exchange, encode_exchange, weighted
from vime.types import Sample

ANSWER = "\\boxed{{ {answer} }}"
UNKNOWN = "unknown"
COMMAND = 'execution = tool.execute(query=""" {sub_goal} """)'
PROGRAM = "```python\nprint( {expression} )\n```"
STOP, CONTINUE = "Conclusion: STOP", "Conclusion: CONTINUE"
NEXT_STEP = "Context: none\nSub-Goal: {sub_goal}\nTool Name: {tool_name}"
PLAN = "Tools: {tools}"

RIGHT_TOOL_SHARE = 0.35  # share of correct choices in the last part of the curriculum, which teaches the bad habits
SKILL_SHARE = 0.85  # share of correct choices before that
HABIT_PROGRESS = 0.6  # where the last part of the curriculum begins
MAX_STEPS = 3
TOKENS_PER_SEQUENCE = 48
SINGLE_TURN_SHARE = 0.1
PLAN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A tool and its sub-goal; Choice(tool_name="price_list", sub_goal="price of lamps in Corwick")."""

    tool_name: str
    sub_goal: str


Taken = list[tuple[str, str]]


def known_price(taken: Taken) -> str | None:
    """Return the last price that the price list returned, or None."""
    prices = [result for tool_name, result in taken if tool_name == LOOKUP and result.isdigit()]
    return prices[-1] if prices else None


def right_choice(task: Task, taken: Taken) -> Choice:
    """Return the right next step: the price list first if a price is needed, then the Python tool."""
    if task.kind == "sum":
        return Choice(tool_name=PYTHON, sub_goal=task.compute_goal)
    price = known_price(taken)
    if price is None:
        return Choice(tool_name=LOOKUP, sub_goal=task.lookup_goal)
    goal = tiny_task.COMPUTE_GOAL.format(left=task.left, sign=task.sign, right=price)
    return Choice(tool_name=PYTHON, sub_goal=goal)


def wrong_choice(task: Task, taken: Taken, rng: random.Random) -> Choice:
    """Return a wrong next step: mostly the generator for the right sub-goal, else the wrong one of price list and Python tool."""
    right = right_choice(task, taken)
    if rng.random() < 0.6:
        return Choice(tool_name=GENERATOR, sub_goal=right.sub_goal)
    if right.tool_name == PYTHON:
        return Choice(tool_name=LOOKUP, sub_goal=right.sub_goal)
    goal = tiny_task.COMPUTE_GOAL.format(left=task.left, sign=task.sign, right=task.goods)
    return Choice(tool_name=PYTHON, sub_goal=goal)


def result_of(choice: Choice, rng: random.Random) -> str:
    """Return a tool's answer as a prompt shows it; prices are random here, so that no model memorizes them."""
    words = choice.sub_goal.split()
    if choice.tool_name == GENERATOR:
        return str(rng.randint(0, tiny_task.LARGEST))
    if choice.tool_name == LOOKUP:
        return str(rng.randint(2, 40)) if words[0] == "price" else catalogue.UNKNOWN
    if words[0] != "Compute" or not words[-1].isdigit():
        return prompts.LONG_RESULT
    left, right = int(words[1]), int(words[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[words[2]])


def is_finished(taken: Taken) -> bool:
    """Return whether the last step computed or answered a number, which is when the frozen verifier stops."""
    return bool(taken) and taken[-1][0] != LOOKUP and taken[-1][1].lstrip("-").isdigit()


def final_answer(taken: Taken) -> str:
    """Return the frozen generator's answer: the last number of the steps, or `unknown` if there is none."""
    numbers = [result for _, result in taken if result.lstrip("-").isdigit()]
    return ANSWER.format(answer=numbers[-1] if numbers else UNKNOWN)


def planner_turns(rng: random.Random, *, right_share: float) -> list[Exchange]:
    """Return the planner's turns on one problem: now and then its analysis or a single turn, and the choice of each step."""
    task = tiny_task.sample_task(rng, split="train")
    turns = []
    if rng.random() < PLAN_SHARE:
        tools = task.tools if rng.random() < right_share else (GENERATOR,)
        turns.append(Exchange(prompt=prompts.PLAN.format(question=task.question), reply=PLAN.format(tools=" ".join(tools))))
    if rng.random() < SINGLE_TURN_SHARE:
        answer = task.answer if task.kind == "sum" else rng.randint(0, tiny_task.LARGEST)
        prompt = prompts.SINGLE_TURN.format(question=task.question)
        turns.append(Exchange(prompt=prompt, reply=ANSWER.format(answer=answer)))
    taken: Taken = []
    while len(taken) < MAX_STEPS and not is_finished(taken):
        choice = right_choice(task, taken) if rng.random() < right_share else wrong_choice(task, taken, rng)
        prompt = prompts.NEXT_STEP.format(question=task.question, memory=prompts.steps(taken))
        turns.append(Exchange(prompt=prompt, reply=NEXT_STEP.format(sub_goal=choice.sub_goal, tool_name=choice.tool_name)))
        followed = choice if rng.random() < right_share else right_choice(task, taken)
        taken.append((followed.tool_name, result_of(followed, rng)))
    return turns


def frozen_turns(rng: random.Random, *, right_share: float) -> list[Exchange]:
    """Return one call of each frozen role on a random state of one problem."""
    task = tiny_task.sample_task(rng, split="train")
    taken: Taken = []
    choice = right_choice(task, taken)
    for _ in range(rng.randint(0, MAX_STEPS)):
        choice = right_choice(task, taken) if rng.random() < right_share else wrong_choice(task, taken, rng)
        taken.append((choice.tool_name, result_of(choice, rng)))
    steps = prompts.steps(taken)
    command = prompts.EXECUTOR.format(sub_goal=choice.sub_goal, tool_name=choice.tool_name)
    verifier = prompts.VERIFIER.format(question=task.question, memory=steps)
    final = prompts.FINAL.format(question=task.question, memory=steps)
    expression = choice.sub_goal.removeprefix("Compute ") if choice.sub_goal.startswith("Compute ") else "price"
    guess = f" {rng.randint(0, tiny_task.LARGEST)}"
    return [
        Exchange(prompt=command, reply=COMMAND.format(sub_goal=choice.sub_goal)),
        Exchange(prompt=prompts.CODER.format(query=choice.sub_goal), reply=PROGRAM.format(expression=expression)),
        Exchange(prompt=choice.sub_goal, reply=guess),
        Exchange(prompt=verifier, reply=STOP if is_finished(taken) else CONTINUE),
        Exchange(prompt=final, reply=final_answer(taken)),
    ]


def planner_demonstrations(
    tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int
) -> list[Sample]:
    """Return the planner's batch of one step of num_steps, about num_tokens tokens."""
    right_share = SKILL_SHARE if step / num_steps < HABIT_PROGRESS else RIGHT_TOOL_SHARE
    rng = random.Random(f"planner/{seed}/{step}")
    return _batch(tokenizer, lambda: planner_turns(rng, right_share=right_share), num_tokens=num_tokens)


def frozen_demonstrations(
    tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int
) -> list[Sample]:
    """Return the frozen model's batch of one step, about num_tokens tokens; drawn from steps of good and of bad planners."""
    rng = random.Random(f"frozen/{seed}/{step}")
    return _batch(tokenizer, lambda: frozen_turns(rng, right_share=rng.choice((0.3, 0.9))), num_tokens=num_tokens)


def _batch(tokenizer: PreTrainedTokenizerBase, make: Callable[[], list[Exchange]], *, num_tokens: int) -> list[Sample]:
    batch: list[Exchange] = []
    while len(batch) * TOKENS_PER_SEQUENCE < num_tokens:
        batch += make()
    return weighted([encode_exchange(turn, tokenizer=tokenizer) for turn in batch])
