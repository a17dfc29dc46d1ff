"""The cost of the way through producer, worker, router and client: tokens per second beside raw vLLM, and prefix cache hits.

    python tools/bench_rollout.py [--concurrency 16 64 256] [--policy NAME] [--rounds 4] [--json PATH] [--markdown PATH]
    python tools/bench_rollout.py --against FOLDER [--concurrency 16 64] [--pairs 8] [--rounds 2] [--hidden 128] [--layers 2]

Two real vLLM servers of a random model. Throughput: the same requests go once as rollouts, and once straight from one process to
the two servers alternately, with the same number at a time; the sides alternate, and the worker that runs the rollouts has
started before. Prefix cache: conversations of several turns in groups of a common prompt, by the router's session affinity and by
random routing, beside the maximum: all whole blocks that one of the servers has read or written before, if a group stays on one
server.

`--against` puts the same requests through another checkout of this project instead (`against.py`), and `--numbers` measures this
one alone: tokens per second by the clock, and per CPU second of driver and worker, which the servers do not hide.
"""

import argparse
import asyncio
import copy
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import against
import aiohttp
from against import Number, Numbers
from bench_agents import NUM_TURNS, OUTPUT_TOKENS, prompt_of
from bench_rows import ROOT, Result, add_options, finish
from rollout_case import GROUP_SIZE, Source, configuration, save_random_model
from step_ours import REST, cpu_times, spent_since

from vime.cluster.nodes import Nodes
from vime.config import RunConfig, ServingConfig
from vime.orchestration.buffer import Buffer
from vime.orchestration.producer import Producer
from vime.runtime import Runtime
from vime.serving.server_metrics import read_metrics
from vime.serving.topology import Serving
from vime.types import Group, rollout_id_of
from vime.workers.agents import launched
from vime.workers.pool import WorkerPool

WAVES = 4
"""Rollouts of a measurement, in multiples of the concurrency."""
SETTLE_SECONDS = 5.0
"""Pause after the start of a worker: right after it, 64 rollouts at a time reach 0.88 of raw vLLM, seconds later all of it."""
BLOCK_TOKENS = 32
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": OUTPUT_TOKENS, "logprobs": 0, "detokenize": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One side of one measurement. Example: `Measured(seconds=10.2, tokens=12288)`."""

    seconds: float
    tokens: int
    requests: tuple[int, ...] = ()
    """The number of requests to each server."""

    @property
    def rate(self) -> float:
        """Sampled tokens per second."""
        return self.tokens / self.seconds


@asynccontextmanager
async def batches(
    serving: Serving, nodes: Nodes, config: RunConfig, *, agent: str, num_rollouts: int, concurrency: int
) -> AsyncIterator[Callable[[], Awaitable[list[Group]]]]:
    """One batch through producer and worker with every call; the worker is the same for all."""
    config = copy.deepcopy(config)
    config.method.generate = f"{ROOT / 'tools' / 'bench_agents.py'}:{agent}"
    config.rollout.num_prompts = num_rollouts // GROUP_SIZE
    config.rollout.max_concurrent_rollouts = concurrency
    pool = WorkerPool(config, serving.endpoints(), nodes)

    async def batch() -> list[Group]:
        producer = Producer(config.rollout, source=Source(), runner=pool, buffer=Buffer())
        producer.set_version(0, num_batches_left=1)
        groups, _ = await producer.batch()
        return groups

    await pool.start()
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        yield batch
    finally:
        await pool.stop()


async def as_rollouts(batch: Callable[[], Awaitable[list[Group]]]) -> Measured:
    """Our side: the time from the first prompt to the finished batch."""
    started = time.monotonic()
    groups = await batch()
    seconds = time.monotonic() - started
    return Measured(seconds=seconds, tokens=sum(r.num_response_tokens for group in groups for r in group.rollouts))


async def straight(urls: tuple[str, ...], *, concurrency: int) -> Measured:
    """The other side: the same requests in the same order, one server after the other."""
    places = asyncio.Semaphore(concurrency)
    numbers = [rollout_id_of(slot, member) for slot in range(WAVES * concurrency // GROUP_SIZE) for member in range(GROUP_SIZE)]

    async def ask(session: aiohttp.ClientSession, position: int, rollout: int) -> int:
        async with places:
            body = {"model": "actor", "token_ids": prompt_of(rollout), "sampling_params": SAMPLING}
            async with session.post(f"{urls[position % len(urls)]}/inference/v1/generate", json=body) as response:
                return len((await response.json())["choices"][0]["token_ids"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None)) as session:
        started = time.monotonic()
        counts = await asyncio.gather(*[ask(session, position, rollout) for position, rollout in enumerate(numbers)])
        return Measured(seconds=time.monotonic() - started, tokens=sum(counts))


async def counts(urls: tuple[str, ...]) -> list[int]:
    """Requests that each server has had."""
    async with aiohttp.ClientSession() as session:
        return [int(found.num_queued) if (found := await read_metrics(session, url)) else 0 for url in urls]


async def clear_caches(urls: tuple[str, ...]) -> None:
    """Empties the prefix caches."""
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(f"{url}/reset_prefix_cache") as response:
                assert response.status == 200, await response.text()


async def throughput(
    serving: Serving, nodes: Nodes, config: RunConfig, result: Result, *, concurrencies: list[int], rounds: int
) -> None:
    """Rows of tokens per second, the sum over the rounds."""
    urls = serving.trained_endpoint().worker_urls
    for concurrency in concurrencies:
        ours: list[Measured] = []
        raw: list[Measured] = []
        size = WAVES * concurrency
        async with batches(serving, nodes, config, agent="single", num_rollouts=size, concurrency=concurrency) as batch:
            for number in range(rounds):
                for side in ("ours", "raw") if number % 2 == 0 else ("raw", "ours"):
                    await clear_caches(urls)
                    before = await counts(urls)
                    if side == "ours":
                        measured = await as_rollouts(batch)
                        split = tuple(after - first for after, first in zip(await counts(urls), before))
                        ours.append(replace(measured, requests=split))
                    else:
                        raw.append(await straight(urls, concurrency=concurrency))
        rates = [sum(m.tokens for m in side) / sum(m.seconds for m in side) for side in (ours, raw)]
        case = f"{concurrency} rollouts at a time"
        result.add("rollout", case, ours=rates[0], reference=rates[1], unit="sampled tokens/s; reference is raw vLLM")
        pairs = ", ".join(f"{a.rate / b.rate:.3f} ({' + '.join(map(str, a.requests))})" for a, b in zip(ours, raw))
        result.notes.append(f"{case}: ratio in each round (and our requests by server) {pairs}")


async def hit_rate(serving: Serving, nodes: Nodes, config: RunConfig) -> tuple[float, float]:
    """Share of the prompts' tokens that were found in a prefix cache, and the largest share possible."""
    await clear_caches(serving.trained_endpoint().worker_urls)
    await serving.metrics()
    async with batches(serving, nodes, config, agent="conversation", num_rollouts=64, concurrency=64) as batch:
        groups = await batch()
    metrics = await serving.metrics()
    return metrics["serving/actor/prefix_hit_rate"], attainable(groups)


def attainable(groups: list[Group]) -> float:
    """The share of prompt tokens in whole blocks that are known: a group's first prompt once, then each conversation so far.

    A prompt's last token is always computed, and so is the last token that was sampled, which was never read.
    """
    known = total = 0
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            before = 0
            for turn, sample in enumerate(rollout.samples):
                prompt = len(sample.tokens) - sample.response_length
                total += prompt
                readable = before if turn else (prompt - 1 if number else 0)
                known += min(readable, prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
                before = len(sample.tokens) - 1
    return known / total


async def measure(options: argparse.Namespace, folder: Path) -> Result:
    """Everything, with servers started once per router policy."""
    result = Result(title=title(options))
    rates: dict[str, tuple[float, float]] = {}
    for policy in (options.policy, "random"):
        async with servers(options, folder, policy) as given:
            if policy == options.policy and options.concurrency:
                await throughput(*given, result, concurrencies=options.concurrency, rounds=options.rounds)
            rates[policy] = await hit_rate(*given)
    for policy, (found, possible) in rates.items():
        case = f"prefix cache, {NUM_TURNS} turns, {policy}"
        result.add(
            "rollout", case, ours=100 * found, reference=100 * possible, unit="% of prompt tokens hit; reference is the most"
        )
    return result


async def measure_alone(options: argparse.Namespace, folder: Path) -> Numbers:
    """The numbers of this checkout, after a batch that does not count."""
    numbers: Numbers = {}
    async with servers(options, folder, options.policy) as (serving, nodes, config):
        urls = serving.trained_endpoint().worker_urls
        for concurrency in options.concurrency:
            size = WAVES * concurrency
            async with batches(serving, nodes, config, agent="single", num_rollouts=size, concurrency=concurrency) as batch:
                await batch()
                cpu_seconds, found = 0.0, list[Measured]()
                for _ in range(options.rounds):
                    await clear_caches(urls)
                    before = cpu_times()
                    found.append(await as_rollouts(batch))
                    spent = spent_since(before)
                    cpu_seconds += spent["worker"] + spent[REST]
            tokens = sum(measured.tokens for measured in found)
            for unit, seconds in (
                ("sampled tokens/s", sum(measured.seconds for measured in found)),
                ("sampled tokens/CPU s of driver and worker", cpu_seconds),
            ):
                numbers[f"{concurrency} rollouts at a time: {unit}"] = Number(value=tokens / seconds, unit=unit)
        hits, _ = await hit_rate(serving, nodes, config)
        numbers[f"prefix cache, {NUM_TURNS} turns"] = Number(value=100 * hits, unit="% of prompt tokens hit")
    return numbers


@asynccontextmanager
async def servers(options: argparse.Namespace, folder: Path, policy: str) -> AsyncIterator[tuple[Serving, Nodes, RunConfig]]:
    """Two servers of a random model behind a router."""
    checkpoint = folder / "model"
    if not checkpoint.exists():
        save_random_model(checkpoint, hidden=options.hidden, layers=options.layers)
    config = configuration(checkpoint, policy=policy)
    with Runtime(config, say=lambda text: None) as runtime:
        async with launched(config, folder / policy, runtime, policy=None) as agents:
            await agents.ready(lambda text: None)
            yield agents.serving, runtime.nodes, config


def title(options: argparse.Namespace) -> str:
    """The title of the page."""
    return f"Rollouts on two servers ({options.hidden} hidden, {options.layers} layers)"


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--policy", default=ServingConfig().router_policy, help="the router's, beside random")
    against.add_options(parser)
    add_options(parser)
    options = parser.parse_args()
    if any(number % GROUP_SIZE for number in options.concurrency):
        parser.error(f"--concurrency {options.concurrency}: give multiples of {GROUP_SIZE}")
    if options.against:
        words = ["--concurrency", *map(str, options.concurrency), "--policy", options.policy]
        words += [word for name in ("hidden", "layers", "rounds") for word in (f"--{name}", str(getattr(options, name)))]
        against.compare(Result(title=title(options)), options, "bench_rollout.py", words)
        return
    with tempfile.TemporaryDirectory(prefix="vime-rollout-") as folder:
        if options.numbers:
            against.write_numbers(asyncio.run(measure_alone(options, Path(folder))))
            return
        result = asyncio.run(measure(options, Path(folder)))
    finish(result, options)


if __name__ == "__main__":
    sys.exit(main())
