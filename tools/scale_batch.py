"""One training batch through the driver: rollouts arrive through Ray, wait in the buffer, get advantages, and go to the ranks.

    python tools/scale_batch.py PROMPTS ROLLOUTS TOKENS RANKS

One side of `bench_scale.py --batch`, of whatever checkout of this repository stands first on PYTHONPATH. Producer, buffer,
journal, `build_updates`, `batch_metrics` and `TrainerGroup.train` are the run's own; the rollouts are made beforehand, in another
process, and a rank only takes its part of the batch and looks up the rows of its micro-batches. Prints one line of JSON.
"""

import asyncio
import gc
import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import ray

PROMPT_TOKENS = 2048
VOCABULARY = 150_000
MAX_TOKENS = 65_536
OBJECT_STORE_BYTES = 6 * 2**30
"""Room for the rollouts of both kinds of checkout at once: the time of Ray's spilling to disk is no part of this."""


class Maker:
    """Makes groups in a process of its own, as a rollout worker does."""

    def make(self, prompt: Any, slot: int, num_rollouts: int, num_tokens: int) -> Any:
        """A group whose rollouts have one sample each, accepted like one of `generate`."""
        from vime.rollout.isolation import check_samples
        from vime.types import Group, Rollout, Sample, Status, StopReason

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
    """Takes its part of a batch: a shard, or where there are none all samples, which every rank then packs."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def train(self, given: list[Any], step: int) -> dict[str, float]:
        """How many tokens lie in this rank's rows, and the CPU time of taking them, unpickling included."""
        trainer = self._config.trainer
        if not hasattr(given[0], "fetched"):
            pack, sequence_flops = found_in("packing", "pack", "sequence_flops")

            def work(length: int) -> float:
                return sequence_flops(self._config.model, length)

            for samples in given:
                lengths = [len(sample.tokens) for sample in samples]
                rows = pack(lengths, max_tokens=MAX_TOKENS, num_ranks=trainer.data_parallel_size, work=work)
                assert rows[0]
        else:
            for shard in given:
                assert shard.fetched(ray.get).rows()
        return {}

    def forward_backward(self, shard: Any, *_: Any) -> Any:
        """The same of the shard of one update."""
        assert shard.fetched(ray.get).rows()
        return SimpleNamespace(sums={}, columns=None)

    def cpu_seconds(self) -> float:
        """Of this process since it began."""
        return time.process_time()


def found_in(module: str, *names: str) -> list[Any]:
    """These names of a module that stands in one folder or another, depending on the age of the checkout."""
    for room in ("rollout", "trainer", "data"):
        with suppress(ModuleNotFoundError):
            return [getattr(import_module(f"vime.{room}.{module}"), name) for name in names]
    raise ModuleNotFoundError(module)


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


async def measure(num_prompts: int, num_rollouts: int, num_tokens: int, num_ranks: int) -> dict[str, float]:
    """Seconds of each part by the clock, CPU seconds, and bytes of the driver per token, after a small batch for imports."""
    from vime.config import RolloutConfig, RunConfig, TrainerConfig

    config = RunConfig(
        rollout=RolloutConfig(num_prompts=num_prompts, num_samples_per_prompt=num_rollouts),
        trainer=TrainerConfig(data_parallel_size=num_ranks, max_tokens_per_micro_batch=MAX_TOKENS),
    )
    maker = ray.remote(Maker).remote()
    ranks = [ray.remote(Rank).remote(config) for _ in range(num_ranks)]
    small = RunConfig(rollout=RolloutConfig(num_prompts=2, num_samples_per_prompt=num_rollouts), trainer=config.trainer)
    await run_batch(small, maker, ranks, 2 * PROMPT_TOKENS)
    return await run_batch(config, maker, ranks, num_tokens)


def learn_from(config: Any, batch: list[Any], trainer: Any) -> tuple[Any, Any]:
    """The updates of a batch, and what hands them to the ranks, of whatever age the checkout is."""
    from vime.algorithm.batch import build_updates

    try:
        from vime.algorithm.choice import algorithm_of
    except ModuleNotFoundError:
        from vime.config import Credit

        updates, _ = build_updates(config.algorithm, batch, credit=Credit.share, version=0)
        return updates, lambda: trainer.train(updates, 0)
    algorithm = algorithm_of(config)
    updates, _ = build_updates(algorithm, batch, version=0)

    async def hand_over() -> None:
        for samples in updates:
            update = await trainer.hand_over(algorithm, samples, version=0)
            await trainer.forward_backward(update, algorithm)

    return updates, hand_over


async def run_batch(config: Any, maker: Any, ranks: list[Any], num_tokens: int) -> dict[str, float]:
    """One batch as the training loop handles it."""
    from vime.rollout.metrics import batch_metrics
    from vime.rollout.producer import Producer
    from vime.trainer.group import TrainerGroup

    (Buffer,), (Journal,) = found_in("buffer", "Buffer"), found_in("journal", "Journal")
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
        updates, hand_over = learn_from(config, batch, trainer)
        batch_metrics(batch, version=0)
        times.append(time.monotonic())
        held = own_bytes(process) - before
        await hand_over()
        times.append(time.monotonic())
        cpu_seconds = time.process_time() - cpu_started
        looking.cancel()
    rank_seconds = sum(ray.get([rank.cpu_seconds.remote() for rank in ranks])) - rank_seconds
    tokens = num_prompts * num_rollouts * num_tokens
    assert sum(len(sample.tokens) for samples in updates for sample in samples) == tokens
    return {
        "tokens": tokens,
        "held_bytes": held / tokens,
        "peak_bytes": (found.peak_bytes - before) / tokens,
        "generation_seconds": times[1] - times[0],
        "update_seconds": times[2] - times[1],
        "hand_over_seconds": times[3] - times[2],
        "driver_cpu_seconds": cpu_seconds,
        "rank_cpu_seconds": rank_seconds,
        "blocked_seconds": found.blocked_seconds,
    }


def main() -> None:
    """Starts Ray for one measurement."""
    sizes = [int(word) for word in sys.argv[1:]]
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    try:
        sys.stdout.write(json.dumps(asyncio.run(measure(*sizes))) + "\n")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
