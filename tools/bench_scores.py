"""The cost of a teacher's scores on one server: beside generation, and for a conversation of many turns.

    python tools/bench_scores.py [--sizes 1M 35M] [--rounds 5] [--json PATH] [--markdown PATH]

Requests are those of a run (`TokenClient.generate`, `TokenClient.score`), 64 at a time, to a real server with a random model in
float32. Scored sequences have as many tokens as prompts and replies of the generation together. The conversation goes through
`Teachers`, as every finished rollout does: 20 turns that are one sequence, beside the same turns as sequences of their own.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_rows import Result, add_options, finish
from rollout_case import TINY
from trainer_case import SHAPES, draw_case, write_case

from vime.chat.agent_clock import AgentClock
from vime.chat.trace import Trace
from vime.chat.traffic import Traffic
from vime.config import DistillationConfig, RunConfig, TeacherConfig
from vime.preflight.compose import compose_run
from vime.runtime import Runtime
from vime.serving.client import TokenClient
from vime.types import Prompt, Rollout, Sample, StopReason
from vime.workers.agents import launched
from vime.workers.teachers import Teachers

NUM_REQUESTS, PROMPT_TOKENS, REPLY_TOKENS = 64, 160, 96
NUM_TURNS, TURN_TOKENS, OBSERVED_TOKENS = 20, 24, 24
LIKELIEST = (0, 20)
VOCABULARY = range(16, 1000)


def configuration(checkpoint: Path) -> RunConfig:
    """One server of a checkpoint."""
    return compose_run(["+method=memagent", f"model.checkpoint={checkpoint}", "trainer.precision=float32"]).config


def conversation(generator: random.Random) -> Sample:
    """Turns of a model, each behind as many tokens of an environment, as one sequence."""
    mask = np.tile([0] * OBSERVED_TOKENS + [1] * TURN_TOKENS, NUM_TURNS)[1:]
    tokens = generator.choices(VOCABULARY, k=len(mask) + 1)
    return Sample(tokens=tokens, loss_mask=mask.tolist(), rollout_log_probs=[-1.0] * len(mask))


def by_turns(whole: Sample) -> list[Sample]:
    """The same turns, each a sequence of its own with all before it as its prompt."""
    found = []
    for turn in range(NUM_TURNS):
        end = (turn + 1) * (OBSERVED_TOKENS + TURN_TOKENS)
        mask = [0] * (end - 1 - TURN_TOKENS) + [1] * TURN_TOKENS
        found.append(Sample(tokens=list(whole.tokens[:end]), loss_mask=mask, rollout_log_probs=[-1.0] * len(mask)))
    return found


async def seconds_of(work: Callable[[], Awaitable[None]]) -> float:
    """The time that the work takes."""
    started = time.monotonic()
    await work()
    return time.monotonic() - started


async def measure_size(size: str, client: TokenClient, config: RunConfig, rounds: int, result: Result) -> None:
    """The rows of one model."""
    generator = random.Random(0)

    async def generate() -> None:
        prompts = [generator.choices(VOCABULARY, k=PROMPT_TOKENS) for _ in range(NUM_REQUESTS)]
        sampling = {"max_tokens": REPLY_TOKENS, "temperature": 1.0, "ignore_eos": True}
        await asyncio.gather(
            *[
                client.generate(prompt, sampling=sampling, session_id=f"g{n}", request_id=f"g{n}")
                for n, prompt in enumerate(prompts)
            ]
        )

    async def score(num_likeliest: int) -> None:
        sequences = [generator.choices(VOCABULARY, k=PROMPT_TOKENS + REPLY_TOKENS) for _ in range(NUM_REQUESTS)]
        await asyncio.gather(
            *[
                client.score(tokens, num_likeliest=num_likeliest, session_id=f"s{n}", request_id=f"s{n}")
                for n, tokens in enumerate(sequences)
            ]
        )

    seconds: dict[str, list[float]] = {}
    for _ in range(rounds + 1):  # the first does not count
        seconds.setdefault("generate", []).append(await seconds_of(generate))
        for number in LIKELIEST:
            seconds.setdefault(f"score {number}", []).append(await seconds_of(lambda number=number: score(number)))
    generated = NUM_REQUESTS * REPLY_TOKENS / median(seconds["generate"][1:])
    for number in LIKELIEST:
        scored = NUM_REQUESTS * REPLY_TOKENS / median(seconds[f"score {number}"][1:])
        case = f"{size}: tokens of replies scored, with the {number} likeliest" if number else f"{size}: tokens of replies scored"
        result.add("scores", case, ours=scored, reference=generated, unit="tokens/s of replies")
    await measure_conversation(size, client, config, rounds, result)


async def measure_conversation(size: str, client: TokenClient, config: RunConfig, rounds: int, result: Result) -> None:
    """A conversation as one sequence beside its turns one by one: tokens that the teacher reads, and seconds."""
    generator = random.Random(1)
    config.algorithm.distillation = DistillationConfig(teachers={"teacher": TeacherConfig()})
    served: Any = SimpleNamespace(client=lambda _: client, traffic=Traffic(), clock=AgentClock())
    teachers = Teachers(config, served)
    prompt = Prompt(index=0, row=0, messages=[], ground_truth=[], dataset="")
    read: dict[str, list[float]] = {"once": [], "by turns": []}
    taken: dict[str, list[float]] = {"once": [], "by turns": []}
    for _ in range(rounds + 1):
        whole = conversation(generator)
        for name, samples in (("once", [whole]), ("by turns", by_turns(replace(whole)))):
            rollout = Rollout(rollout_id=0, group_index=0, samples=samples, stop_reason=StopReason.ANSWERED, reward=1.0)
            before = client.calls.input_tokens
            teach = teachers.teach(rollout, prompt=prompt, session="c", version=0, trace=Trace())
            taken[name].append(await seconds_of(lambda teach=teach: teach))
            assert rollout.stop_reason is StopReason.ANSWERED, rollout.error
            read[name].append(client.calls.input_tokens - before)
    case = f"{size}: conversation of {NUM_TURNS} turns, {len(whole.tokens)} tokens"
    once, turns = (median(read[name]) for name in ("once", "by turns"))
    result.add("scores", f"{case}: one sequence, beside one for each turn", ours=once, reference=turns, unit="tokens read")
    ours, reference = (1000 * median(taken[name][1:]) for name in ("once", "by turns"))
    result.add("scores", f"{case}: one sequence, beside one for each turn", ours=ours, reference=reference, unit="ms")


async def measure(options: argparse.Namespace, folder: Path) -> Result:
    """Every model."""
    result = Result(title="Scores of a teacher", columns=("scoring", "reference"))
    result.notes += [
        f"{NUM_REQUESTS} requests at a time; replies of {REPLY_TOKENS} tokens behind prompts of {PROMPT_TOKENS}. The reference "
        "of the first rows is the generation of such replies, prompts included.",
        f"Medians of {options.rounds} rounds after one that does not count, all in turns.",
        "A sequence is scored in one request; vLLM computes logprobs of a prompt without its prefix cache.",
    ]
    for size in options.sizes:
        checkpoint = folder / size
        write_case(draw_case(size, "float32", []), checkpoint)
        for file in TINY.glob("*token*"):
            (checkpoint / file.name).write_bytes(file.read_bytes())
        config = configuration(checkpoint)
        with Runtime(config, say=lambda text: None) as runtime:
            async with launched(config, folder / f"{size}-run", runtime, policy=None) as agents:
                await agents.ready(lambda text: None)
                client = TokenClient(agents.serving.endpoints()["actor"], config.serving)
                await measure_size(size, client, config, options.rounds, result)
                await client.close()
    return result


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=[name for name in SHAPES if name != "7B"], default=["1M", "35M"])
    parser.add_argument("--rounds", type=int, default=5)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-scores-") as folder:
        result = asyncio.run(measure(options, Path(folder)))
    finish(result, options)


if __name__ == "__main__":
    main()
