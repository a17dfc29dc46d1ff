"""The controller's cost per rollout with 1,000 to 100,000 of them in flight: our producer, buffer and worker over simulated
servers, in one process. Time and memory per rollout should not grow with their number.

    python tools/bench_scale.py [--sizes 1000 10000 100000] [--json PATH]
    python tools/bench_scale.py [--sizes 1000 10000] --against FOLDER [--pairs 8] [--json PATH] [--markdown PATH]
    python tools/bench_scale.py --batch 8 [--ranks 8] --against FOLDER [--pairs 8] [--json PATH] [--markdown PATH]

Every rollout makes three model calls of 128 tokens in and 24 out; in the first, all wait until every rollout is in flight. Time
is CPU time of the process, so that a busy machine changes little; memory is the increase with all of them in flight.

With `--batch`, instead, the cost of the tokens of one training batch in the driver: that many prompts with 16 rollouts of 32,768
tokens each (`scale_batch.py`). `--against` puts another checkout of this project beside this one (`against.py`); `--numbers`
measures this one alone.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import against
import psutil
from against import Number, Numbers
from bench_rows import ROOT, Result, add_options, finish

from vime.types import Turn

BATCH_ROLLOUTS, BATCH_TOKENS = 16, 32_768
GROUP_SIZE, NUM_BATCHES, NUM_CALLS = 8, 2, 3
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 24
BATCH_NOTES = [
    "Seconds by the clock: from the first group's arrival to a journal that is written; advantages, weights and metrics; "
    "packing and the way to the ranks until each has its rows. Rollouts are made beforehand.",
    "Bytes are of memory that the driver's process has for itself; Ray's object store is shared memory and not among them.",
]
WARM_UP = 80
"""Rollouts before the measurement: imports, caches, the first allocations."""


@dataclass(kw_only=True, slots=True)
class SimulatedServer:
    """Holds each rollout's first call until `num_rollouts` are in flight, then answers all at once."""

    num_rollouts: int
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)
    bytes_in_flight: int = 0

    def finish(self, session_id: str) -> None:
        """Sessions are nothing to it."""

    async def generate(
        self, token_ids: Any, *, sampling: Any, session_id: str, request_id: str, minimum_version: int, listener: Any
    ) -> Any:
        if request_id.endswith("-0"):
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            if len(self.waiting) == self.num_rollouts:
                self.bytes_in_flight = psutil.Process().memory_info().rss
                waiting, self.waiting = self.waiting, []
                for other in waiting:
                    other.set_result(None)
            await future
        output = [7 + len(token_ids) % 100] * OUTPUT_TOKENS
        return Turn(
            output_ids=output,
            logprobs=[-0.5] * OUTPUT_TOKENS,
            weight_versions=[minimum_version] * OUTPUT_TOKENS,
            finish_reason="length",
            seconds=0.0,
        )


async def generate(context: Any, sample: Any, sampling: Any) -> list[Any]:
    """An agent of three turns, each a sample of its own."""
    first = sample.metadata["first_token"]
    for number in range(NUM_CALLS):
        await context.models["actor"].complete([first + number] * PROMPT_TOKENS, max_tokens=OUTPUT_TOKENS)
    return context.samples(sample)


async def reward(context: Any, samples: list[Any]) -> float:
    """Any number."""
    return float(samples[0].rollout_id % 2)


class Source:
    """Prompts without end."""

    def __init__(self) -> None:
        self._position = 0

    def next(self) -> Any:
        """The next prompt."""
        from vime.types import Prompt

        self._position += 1
        metadata = {"first_token": 10 + self._position % 50}
        return Prompt(index=self._position, row=0, messages=[], ground_truth=[], metadata=metadata)


async def measure(num_rollouts: int) -> dict[str, float]:
    """CPU seconds and bytes per rollout."""
    process = psutil.Process()
    await run_batches(WARM_UP, num_batches=1)
    gc.collect()
    before, started = process.memory_info().rss, time.process_time()
    server = await run_batches(num_rollouts, num_batches=NUM_BATCHES)
    seconds = (time.process_time() - started) / (NUM_BATCHES * num_rollouts)
    return {"seconds": seconds, "bytes": (server.bytes_in_flight - before) / num_rollouts}


async def run_batches(num_rollouts: int, *, num_batches: int) -> SimulatedServer:
    """Batches of `num_rollouts`, all in flight at once, through producer, buffer and one worker."""
    from vime.config import MethodConfig, RolloutConfig, RunConfig
    from vime.orchestration.buffer import Buffer
    from vime.orchestration.producer import Producer
    from vime.serving.topology import Endpoint
    from vime.workers.worker import RolloutWorker

    here = f"{Path(__file__).resolve()}:"
    config = RunConfig(
        method=MethodConfig(name="bench", generate=f"{here}generate", reward=f"{here}reward"),
        rollout=RolloutConfig(
            num_prompts=num_rollouts // GROUP_SIZE,
            num_samples_per_prompt=GROUP_SIZE,
            max_concurrent_rollouts=num_rollouts,
            generate_timeout_seconds=3600.0,
        ),
    )
    endpoint = Endpoint(
        name="actor",
        url="http://simulated",
        worker_urls=(),
        model="actor",
        tokenizer=str(ROOT / "agentic" / "memagent" / "tiny" / "actor"),
        max_model_len=1024,
        trained=True,
    )
    server = SimulatedServer(num_rollouts=num_rollouts // GROUP_SIZE * GROUP_SIZE)
    worker = RolloutWorker(config, {"actor": endpoint}, make_client=lambda endpoint, serving: server)
    await worker.ready()
    producer = Producer(config.rollout, source=Source(), runner=worker, buffer=Buffer())
    for version in range(num_batches):
        producer.set_version(version)
        await producer.batch()
    await producer.stop()
    return server


def measure_alone(size: int) -> dict[str, float]:
    """The measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(size)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return json.loads(answer.splitlines()[-1])


def numbers_of(found: dict[int, dict[str, float]]) -> Numbers:
    """The cost per rollout at each size."""
    numbers: Numbers = {}
    for size, values in found.items():
        label = f"{size:,} rollouts in flight"
        numbers[f"{label}: time"] = Number(value=1e6 * values["seconds"], unit="µs of CPU time per rollout", is_cost=True)
        numbers[f"{label}: memory"] = Number(value=values["bytes"] / 1024, unit="KiB per rollout", is_cost=True)
    return numbers


def beside_the_smallest(found: dict[int, dict[str, float]]) -> Result:
    """Each size beside the smallest, whose costs it should have."""
    smallest = min(found)
    result = Result(title="Rollouts in flight", columns=("this size", f"{smallest:,}"))
    references = list(numbers_of({smallest: found[smallest]}).values())
    for size, values in found.items():
        for (case, number), reference in zip(numbers_of({size: values}).items(), references):
            result.add("scale", case, ours=number.value, reference=reference.value, unit=number.unit)
    return result


def main() -> None:
    """Measures every size in a process of its own and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--batch", type=int, metavar="PROMPTS", help="a training batch of so many prompts instead")
    parser.add_argument("--ranks", type=int, default=8, help="with --batch: data-parallel ranks (8)")
    against.add_options(parser)
    add_options(parser)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(asyncio.run(measure(arguments.measure))) + "\n")
    elif arguments.against and arguments.batch:
        result = Result(title="A batch's tokens in the driver", notes=BATCH_NOTES)
        words = ["--batch", str(arguments.batch), "--ranks", str(arguments.ranks)]
        against.compare(result, arguments, "bench_scale.py", words)
    elif arguments.against:
        result = Result(title="Rollouts in flight")
        against.compare(result, arguments, "bench_scale.py", ["--sizes", *map(str, arguments.sizes)])
    elif arguments.batch:
        import scale_batch

        numbers = scale_batch.measure(arguments.batch, BATCH_ROLLOUTS, BATCH_TOKENS, arguments.ranks)
        against.write_numbers(numbers)
    else:
        found = {size: measure_alone(size) for size in arguments.sizes}
        if arguments.numbers:
            against.write_numbers(numbers_of(found))
        else:
            finish(beside_the_smallest(found), arguments)


if __name__ == "__main__":
    main()
