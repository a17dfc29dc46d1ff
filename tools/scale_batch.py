"""One training batch through the driver: rollouts arrive through Ray, wait in the buffer, get advantages, and go to the ranks.

One side of `bench_scale.py --batch`. Producer, buffer, journal, `build_updates`, `batch_metrics` and the hand-over of
`TrainerGroup` are the run's own; the rollouts are made beforehand, in another process, and a rank only takes its part of the
batch and looks up the rows of its micro-batches.
"""

import asyncio
import gc
import logging
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import ray
from against import Number, Numbers

PROMPT_TOKENS = 2048
VOCABULARY = 150_000
MAX_TOKENS = 65_536
OBJECT_STORE_BYTES = 6 * 2**30
"""Room for the rollouts of both kinds of checkout at once: the time of Ray's spilling to disk is not measured here."""


class Maker:
    """Makes groups in a process of its own, as a rollout worker does."""

    def make(self, prompt: Any, slot: int, num_rollouts: int, num_tokens: int) -> Any:
        """A group whose rollouts have one sample each, accepted like one of `generate`."""
        from vime.types import Group, Rollout, Sample, Status, StopReason
        from vime.workers.isolation import check_samples

        generator = random.Random(slot)
        group = Group(prompt=prompt)
        length = num_tokens - PROMPT_TOKENS
        for member in range(num_rollouts):
            rollout = Rollout(rollout_id=slot * 1_000_000 + member, group_index=slot, reward=float(member % 2))
            sample = Sample(
                tokens=[generator.randrange(VOCABULARY) for _ in range(num_tokens)],
                response_length=length,
                loss_mask=[1] * length,
                rollout_log_probs=[-generator.random() for _ in range(length)],
                weight_versions=[0] * length,
            )
            rollout.stop_reason, rollout.status = StopReason.ANSWERED, Status.COMPLETED
            rollout.samples = check_samples(sample, Sample(rollout_id=rollout.rollout_id, group_index=slot))
            group.rollouts.append(rollout)
        return group


class Rank:
    """Takes its part of a batch."""

    def forward_backward(self, _: str, shard: Any, *__: Any) -> Any:
        """Looks up this rank's rows of an update."""
        assert shard.fetched(ray.get).rows()
        return SimpleNamespace(sums={}, columns=None)

    def cpu_seconds(self) -> float:
        """CPU seconds of this process since it began."""
        return time.process_time()


class Source:
    """Prompts without end."""

    def __init__(self) -> None:
        self._position = -1

    def next(self) -> Any:
        """The next prompt."""
        self._position += 1
        return prompt_of(self._position)


class Runner:
    """Gives out the groups that were made."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups

    async def run_group(self, *, slot: int, **_: Any) -> Any:
        """The group of a slot, from Ray's store."""
        return await self._groups[slot]


def prompt_of(index: int) -> Any:
    """A prompt without content."""
    from vime.types import Prompt

    return Prompt(index=index, row=index, messages=[], ground_truth=[])


def own_bytes(process: psutil.Process) -> int:
    """Memory of a process that is not mapped from a file or from Ray's object store."""
    memory: Any = process.memory_info()
    return memory.rss - memory.shared


@contextmanager
def watched(found: SimpleNamespace) -> Iterator[None]:
    """Sets `found.peak_bytes` to the most memory of this process alone within the block."""
    process, over = psutil.Process(), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found.peak_bytes = max(found.peak_bytes, own_bytes(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def look_for_blocks(found: SimpleNamespace) -> None:
    """Sets `found.blocked_seconds` to the longest time in which the event loop did nothing else."""
    while True:
        started = time.monotonic()
        await asyncio.sleep(0.002)
        found.blocked_seconds = max(found.blocked_seconds, time.monotonic() - started)


def measure(num_prompts: int, num_rollouts: int, num_tokens: int, num_ranks: int) -> Numbers:
    """Seconds of each part by the clock, CPU seconds, and bytes of the driver per token, on a Ray of its own."""
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    try:
        return asyncio.run(_measure(num_prompts, num_rollouts, num_tokens, num_ranks))
    finally:
        ray.shutdown()


async def _measure(num_prompts: int, num_rollouts: int, num_tokens: int, num_ranks: int) -> Numbers:
    """Measures a batch, after a small one for imports."""
    from vime.config import RolloutConfig, RunConfig, TrainerConfig

    config = RunConfig(
        rollout=RolloutConfig(num_prompts=num_prompts, num_samples_per_prompt=num_rollouts),
        trainer=TrainerConfig(data_parallel_size=num_ranks, max_tokens_per_micro_batch=MAX_TOKENS),
    )
    maker = ray.remote(Maker).remote()
    ranks = [ray.remote(Rank).remote() for _ in range(num_ranks)]
    small = RunConfig(rollout=RolloutConfig(num_prompts=2, num_samples_per_prompt=num_rollouts), trainer=config.trainer)
    await run_batch(small, maker, ranks, 2 * PROMPT_TOKENS)
    return await run_batch(config, maker, ranks, num_tokens)


async def run_batch(config: Any, maker: Any, ranks: list[Any], num_tokens: int) -> Numbers:
    """One batch as the training loop handles it."""
    from vime.algorithm.batch import build_updates
    from vime.algorithm.choice import algorithm_of
    from vime.orchestration.batch_metrics import batch_metrics
    from vime.orchestration.buffer import Buffer
    from vime.orchestration.journal import Journal
    from vime.orchestration.producer import Producer
    from vime.trainer.group import TrainerGroup

    num_prompts, num_rollouts = config.rollout.num_prompts, config.rollout.num_samples_per_prompt
    groups = [maker.make.remote(prompt_of(slot), slot, num_rollouts, num_tokens) for slot in range(num_prompts)]
    ray.wait(groups, num_returns=len(groups), fetch_local=False)
    rank_seconds = sum(ray.get([rank.cpu_seconds.remote() for rank in ranks]))
    trainer = TrainerGroup(config, Path("unused"), "scale")
    trainer._ranks = ranks
    gc.collect()
    process = psutil.Process()
    before = own_bytes(process)
    found = SimpleNamespace(peak_bytes=before, blocked_seconds=0.0)
    with tempfile.TemporaryDirectory() as folder, watched(found):
        looking = asyncio.create_task(look_for_blocks(found))
        await asyncio.sleep(0.1)
        cpu_started, times = time.process_time(), [time.monotonic()]
        journal = Journal(Path(folder))
        journal.begin(0)
        runner: Any = Runner(groups)
        producer = Producer(config.rollout, source=Source(), runner=runner, buffer=Buffer(), journal=journal)
        producer.set_version(0, num_batches_left=1)
        batch, _ = await producer.batch()
        await asyncio.gather(*producer._tasks.values())  # a group is in the journal when its task ends
        times.append(time.monotonic())
        algorithm = algorithm_of(config)
        updates, _ = build_updates(algorithm, batch)
        batch_metrics(batch, version=0)
        times.append(time.monotonic())
        held = own_bytes(process) - before
        for samples in updates:
            await trainer.forward_backward(await trainer.hand_over(algorithm, samples, version=0), algorithm)
        times.append(time.monotonic())
        cpu_seconds = time.process_time() - cpu_started
        looking.cancel()
    rank_seconds = sum(ray.get([rank.cpu_seconds.remote() for rank in ranks])) - rank_seconds
    tokens = num_prompts * num_rollouts * num_tokens
    assert sum(len(sample.tokens) for samples in updates for sample in samples) == tokens
    generation, update, hand_over = (after - before for before, after in pairwise(times))
    costs = {
        "kept until training": (held / tokens, "bytes per token"),
        "most at any time": ((found.peak_bytes - before) / tokens, "bytes per token"),
        "all": (times[-1] - times[0], "seconds"),
        "producer, buffer, journal": (generation, "seconds"),
        "advantages, weights, metrics": (update, "seconds"),
        "packing and hand-over": (hand_over, "seconds"),
        "all, driver alone": (cpu_seconds, "seconds of CPU time"),
        "all, driver and ranks": (cpu_seconds + rank_seconds, "seconds of CPU time"),
        "longest block of the event loop": (found.blocked_seconds, "seconds"),
    }
    label = f"{tokens / 1e6:.1f} M tokens"
    return {f"{label}: {name}": Number(value=value, unit=unit, is_cost=True) for name, (value, unit) in costs.items()}
