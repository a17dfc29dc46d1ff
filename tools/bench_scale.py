"""What the controller costs per rollout with 1,000 to 100,000 of them in flight: our producer, buffer and worker over simulated
servers, in one process. Time and memory per rollout should not grow with their number.

    python tools/bench_scale.py [--sizes 1000 10000 100000] [--json PATH]
    python tools/bench_scale.py --batch 8 [--against FOLDER] [--alone 128] [--ranks 8] [--json PATH] [--markdown PATH]

With `--batch`, instead, what the tokens of one training batch cost the driver: that many prompts with 16 rollouts of 32,768
tokens each (`scale_batch.py`), beside another checkout of this repository. `--alone` adds a size that only this checkout runs.

Every rollout makes three model calls of 128 tokens in and 24 out; in the first, all wait until every rollout is in flight. Time
is CPU time of the process, so that a busy machine changes little; memory is what all of them in flight add to it.
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

import psutil
from bench_rows import add_options, finish
from scale_table import compare_batches

from vime.types import Turn

ROOT = Path(__file__).resolve().parent.parent
GROUP_SIZE, NUM_BATCHES, NUM_CALLS = 8, 2, 3
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 24
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
    """CPU seconds and bytes per rollout, and rollouts per second of CPU time."""
    process = psutil.Process()
    await run_batches(WARM_UP, num_batches=1)
    gc.collect()
    before, started = process.memory_info().rss, time.process_time()
    server = await run_batches(num_rollouts, num_batches=NUM_BATCHES)
    seconds = (time.process_time() - started) / (NUM_BATCHES * num_rollouts)
    return {"seconds": seconds, "bytes": (server.bytes_in_flight - before) / num_rollouts, "per_second": 1 / seconds}


async def run_batches(num_rollouts: int, *, num_batches: int) -> SimulatedServer:
    """Batches of `num_rollouts`, all in flight at once, through producer, buffer and one worker."""
    from vime.config import MethodConfig, RolloutConfig, RunConfig
    from vime.rollout.buffer import Buffer
    from vime.rollout.producer import Producer
    from vime.rollout.worker import RolloutWorker
    from vime.serving.topology import Endpoint

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


def rows_of(found: dict[int, dict[str, float]]) -> list[dict[str, Any]]:
    """Each size beside the smallest."""
    smallest = found[min(found)]
    rows = []
    for size, values in found.items():
        for name, unit, scale in (
            ("seconds", "µs of CPU time per rollout", 1e6),
            ("bytes", "KiB per rollout in flight", 1 / 1024),
        ):
            ours, reference = values[name] * scale, smallest[name] * scale
            case = f"{size:,} rollouts in flight, {unit}"
            rows.append(
                {
                    "benchmark": "scale",
                    "case": case,
                    "ours": ours,
                    "reference": reference,
                    "ratio": ours / reference,
                    "unit": unit,
                }
            )
        rate = values["per_second"]
        case = f"{size:,} rollouts in flight, throughput of one worker"
        reference = smallest["per_second"]
        unit = "rollouts per second of CPU time"
        rows.append(
            {"benchmark": "scale", "case": case, "ours": rate, "reference": reference, "ratio": rate / reference, "unit": unit}
        )
    return rows


def main() -> None:
    """Measures every size in a process of its own and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--batch", type=int, metavar="PROMPTS", help="a training batch of so many prompts instead")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="with --batch: another checkout to put beside this one")
    parser.add_argument("--alone", type=int, metavar="PROMPTS", help="with --batch: a larger batch for this checkout alone")
    parser.add_argument("--ranks", type=int, default=8, help="with --batch: data-parallel ranks (8)")
    parser.add_argument("--rounds", type=int, default=3, help="with --batch: how often each side runs (3)")
    add_options(parser)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(asyncio.run(measure(arguments.measure))) + "\n")
        return
    if arguments.batch:
        finish(compare_batches(arguments), arguments)
        return
    found: dict[int, dict[str, float]] = {}
    for size in arguments.sizes:
        command = [sys.executable, __file__, "--measure", str(size)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        found[size] = json.loads(answer.splitlines()[-1])
    rows = rows_of(found)
    for row in rows:
        sys.stdout.write(f"{row['case']:<75} {row['ours']:>12,.1f}   {row['ratio']:.2f} of the smallest\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
