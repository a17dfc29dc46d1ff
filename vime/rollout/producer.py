"""The producer keeps groups running and fills the buffer; synchronous and asynchronous training are settings of it.

Staleness is bounded by admission: slot s is trained in batch s // num_prompts, whose weights are version s // num_prompts, so it
may start once the servers are at most `max_staleness` versions behind that. With 0 that is synchronous and on-policy.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from vime.config import RolloutConfig
from vime.data.buffer import Buffer
from vime.errors import InfrastructureError
from vime.types import Group, Prompt

logger = logging.getLogger(__name__)


class Source(Protocol):
    """An endless stream of prompts (`vime.data.source.RowSource`)."""

    def next(self) -> Prompt: ...


class Runner(Protocol):
    """Runs groups (`vime.rollout.pool.WorkerPool`)."""

    async def run_group(self, *, prompt: Prompt, slot: int, num_rollouts: int, version: int) -> Group: ...


class Producer:
    """Runs groups within the staleness bound and hands out batches of finished ones."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        source: Source,
        runner: Runner,
        buffer: Buffer,
        keep: Callable[[RolloutConfig, Group], bool] | None = None,
    ) -> None:
        self._config = config
        self._source = source
        self._runner = runner
        self._buffer = buffer
        self._keep = keep
        self._version = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: asyncio.Future[None] | None = None
        self._counts: Counter[str] = Counter()
        self._causes: Counter[str] = Counter()
        self.on_group: Callable[[Group], None] = lambda group: None

    def set_version(self, version: int) -> None:
        """Tells that the servers now hold `version`, and starts the groups that this admits."""
        self._version = version
        for slot, prompt in self._buffer.unfinished().items():
            if slot not in self._tasks:
                self._run(slot, prompt)
        limit = (version + self._config.max_staleness + 1) * self._config.num_prompts
        while self._buffer.num_admitted < limit:
            prompt = self._source.next()
            self._run(self._buffer.admit(prompt), prompt)

    async def batch(self) -> tuple[list[Group], dict[str, float]]:
        """The oldest `num_prompts` groups, finished, and counts of what happened since the last call.

        Raises `InfrastructureError` when too many rollouts fail for reasons that are not the agent's, or when the filter
        keeps too few groups.
        """
        self._failure = asyncio.get_running_loop().create_future()
        take = asyncio.create_task(self._buffer.take(self._config.num_prompts))
        try:
            self._check()
            await asyncio.wait({take, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if not take.done():
                self._failure.result()
            groups = take.result()
        finally:
            take.cancel()
            self._failure = None
        metrics = {f"rollout/num_{name}": float(count) for name, count in self._counts.items()}
        self._counts.clear()
        self._causes.clear()
        return groups, metrics

    async def stop(self) -> None:
        """Cancels what is running."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def state(self) -> dict[str, Any]:
        """What the next run needs so that no prompt is lost or doubled: the buffer with its unfinished prompts."""
        return self._buffer.state()

    def _run(self, slot: int, prompt: Prompt) -> None:
        task = asyncio.create_task(self._fill(slot, prompt))
        self._tasks[slot] = task
        task.add_done_callback(lambda done: self._finished(slot, done))

    async def _fill(self, slot: int, prompt: Prompt) -> None:
        """Runs the slot's prompt until it gives a group that can be trained; a filtered one is replaced by another prompt."""
        while True:
            group = await self._runner.run_group(
                prompt=prompt, slot=slot, num_rollouts=self._config.num_samples_per_prompt, version=self._version
            )
            self._count(group)
            if not any(rollout.counting.trained for rollout in group.rollouts):
                self._counts["groups_repeated"] += 1
                self._check()
            elif self._keep is not None and not self._keep(self._config, group):
                self._counts["groups_filtered"] += 1
                self._check()
                prompt = self._source.next()
                self._buffer.replace(slot, prompt)
            else:
                self._buffer.finish(slot, group)
                self.on_group(group)
                self._check()
                return

    def _finished(self, slot: int, task: "asyncio.Task[None]") -> None:
        del self._tasks[slot]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _count(self, group: Group) -> None:
        self._counts["groups"] += 1
        for rollout in group.rollouts:
            self._counts["rollouts"] += 1
            self._counts["retries"] += rollout.num_retries
            if not rollout.counting.in_baseline:
                self._counts["failed"] += 1
                self._causes[f"{rollout.stop_reason.value}: {rollout.error}"] += 1

    def _check(self) -> None:
        """Fails the waiting batch if what was counted since the last one says that going on makes no sense."""
        enough = self._config.num_samples_per_prompt * min(self._config.num_prompts, 4)
        failed, rollouts = self._counts["failed"], self._counts["rollouts"]
        if rollouts >= enough and failed / rollouts > self._config.max_infrastructure_failure_share:
            cause, times = self._causes.most_common(1)[0]
            self._fail(
                InfrastructureError(
                    f"{failed} of {rollouts} rollouts failed for reasons that are not the agent's, more than "
                    f"rollout.max_infrastructure_failure_share={self._config.max_infrastructure_failure_share}; "
                    f"most often ({times} times) {cause}"
                )
            )
        filtered, groups = self._counts["groups_filtered"], self._counts["groups"]
        if groups >= 4 * self._config.num_prompts and filtered / groups > self._config.max_filtered_share:
            self._fail(
                InfrastructureError(
                    f"rollout.filter dropped {filtered} of {groups} groups, more than rollout.max_filtered_share="
                    f"{self._config.max_filtered_share}: the model solves nearly everything or nearly nothing"
                )
            )
