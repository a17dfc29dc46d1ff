"""The producer keeps groups running and hands out batches; every mode of training is a setting of it (see this folder's README).

A batch of version v consists of groups whose tokens are of versions v - max_staleness … v. Groups are admitted so that all can be
trained in time, and taken as they finish; a group that could not be trained in time is generated again in the same slot.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from vime.config import RolloutConfig
from vime.errors import CheckpointError
from vime.orchestration.buffer import Buffer
from vime.orchestration.journal import Journal
from vime.orchestration.tally import Tally
from vime.tasks import cancel
from vime.types import Group, Prompt, StopReason
from vime.workers.group_run import GroupProgress, Resampled

ASK_AGAIN_SECONDS = 0.5
"""Interval at which a waiting batch asks again for late groups to be resampled; their stale rollouts may have been at work."""


class PromptStream(Protocol):
    """An endless stream of prompts (`vime.data.source.RowSource`)."""

    def next(self) -> Prompt: ...


class Runner(Protocol):
    """Runs groups (`vime.workers.pool.WorkerPool`, `vime.workers.worker.RolloutWorker`)."""

    async def run_group(
        self,
        *,
        prompt: Prompt,
        slot: int,
        num_rollouts: int,
        version: int,
        num_wanted: int | None,
        progress: GroupProgress | None,
    ) -> Group: ...

    async def resample(self, *, slot: int, oldest: int, version: int) -> Resampled | None: ...

    async def progress(self) -> dict[int, GroupProgress]: ...


class Producer:
    """Runs groups within the staleness bound and hands out batches of finished ones."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        source: PromptStream,
        runner: Runner,
        buffer: Buffer,
        keep: Callable[[RolloutConfig, Group], bool] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._config = config
        self._journal = journal
        self._source = source
        self._runner = runner
        self._buffer = buffer
        self._keep = keep
        self._seen: Callable[[Group], None] = getattr(source, "seen", lambda group: None)
        self._version = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._resampling: dict[int, asyncio.Task[bool]] = {}
        """Requests to sample the stale rollouts of late groups again, by slot; a result is True if that was possible."""
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._tally = Tally(config)
        self.on_group: Callable[[Group], None] = lambda group: None

    def set_version(self, version: int, *, num_batches_left: int | None = None) -> None:
        """Announces that the servers now hold `version`, and starts the groups that this admits.

        With `num_batches_left` no group is started that the rest of the run would not train.
        """
        config, self._version = self._config, version
        self._expire(version - config.max_staleness)
        self._resampling = {slot: task for slot, task in self._resampling.items() if not task.done()}
        num_batches = 1 if config.partial_rollouts else config.max_staleness + 1
        if num_batches_left is not None:
            num_batches = min(num_batches, num_batches_left)
        while len(self._buffer) < num_batches * config.num_prompts + config.num_oversampled_prompts:
            self._buffer.admit(self._source.next())
        for slot in self._buffer.start(version, max_staleness=config.max_staleness):
            self._run(slot)

    async def batch(self) -> tuple[list[Group], dict[str, float]]:
        """`num_prompts` finished groups, and counts since the last call; stops groups that have become too old to be trained.

        Raises `InfrastructureError` when too many rollouts fail for reasons that are not the agent's, or when the filter
        keeps too few groups.
        """
        config = self._config
        bound = {
            "version": self._version,
            "max_staleness": config.max_staleness,
            "num_spare": config.num_oversampled_prompts,
        }
        while True:
            if self._error is not None:
                raise self._error
            groups = self._buffer.take(config.num_prompts, **bound)
            if groups is not None:
                break
            late = self._buffer.late(config.num_prompts, **bound) if config.max_staleness else []
            self._changed.clear()
            for slot in late:
                self._resample(slot)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), ASK_AGAIN_SECONDS if late else None)
        self._expire(self._version + 1 - config.max_staleness)
        metrics = self._tally.take()
        metrics["rollout/num_groups_in_flight"] = float(self._buffer.num_generating)
        metrics["rollout/num_groups_buffered"] = float(self._buffer.num_finished)
        return groups, metrics

    def give_back(self, groups: list[Group]) -> None:
        """Puts groups that `batch` returned, and that were not trained, back into their slots."""
        for group in reversed(groups):
            self._buffer.give_back(group)

    async def stop(self) -> None:
        """Cancels all running groups, after which every finished group is in the journal."""
        await cancel([*self._resampling.values(), *self._tasks.values()])
        if self._journal is not None:
            await self._journal.settle()

    async def state(self) -> dict[str, Any]:
        """The state that a resumed run needs, so that no prompt is lost or repeated and nothing finished is sampled again."""
        return self._buffer.state(await self._runner.progress())

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned. Raises CheckpointError for the state of a producer of the user."""
        if "slots" not in state:
            raise CheckpointError("the checkpoint was made with a rollout.producer of your own: resume with that one")
        self._buffer.load(state)

    def _run(self, slot: int) -> None:
        task = asyncio.create_task(self._fill(slot))
        self._tasks[slot] = task
        task.add_done_callback(lambda done: self._ended(slot, done))

    async def _fill(self, slot: int) -> None:
        """Runs the slot until it gives a group that can be trained."""
        config, entry = self._config, self._buffer[slot]
        while True:
            assert entry.version is not None, f"slot {slot} was not started"
            group = self._journal.take(slot, entry.prompt.index) if self._journal is not None else None
            if group is not None:
                self._tally.counts["groups_recalled"] += 1
            else:
                num_rollouts = config.num_samples_per_prompt + config.num_oversampled_samples_per_prompt
                with self._tally.asked(slot, entry.prompt, num_rollouts):
                    group = await self._runner.run_group(
                        prompt=entry.prompt,
                        slot=slot,
                        num_rollouts=num_rollouts,
                        version=entry.version,
                        num_wanted=config.num_samples_per_prompt,
                        progress=entry.progress,
                    )
            self._seen(group)
            self._tally.add(group, known=entry.progress.finished if entry.progress is not None and entry.num_repeats else {})
            if self._is_too_small(group) or all(rollout.could_not_begin for rollout in group.rollouts):
                self._complete(slot, group)
            elif group.oldest_version < self._version - config.max_staleness:
                self._tally.counts["groups_refused"] += 1
                self._buffer.restart(slot, self._version)
            elif not self._is_kept(group):
                self._tally.counts["groups_filtered"] += 1
                self._buffer.restart(slot, self._version, prompt=self._source.next())
            else:
                self._buffer.finish(slot, group)
                self.on_group(group)
                self._changed.set()
                self._check()
                if self._journal is not None:
                    await self._journal.add(group)
                return
            self._check()

    def _resample(self, slot: int) -> None:
        """Asks for the stale rollouts of an unfinished group to be sampled again, unless that was done under these weights."""
        task = self._resampling.get(slot)
        if task is None or (task.done() and not task.result()):
            task = self._resampling[slot] = asyncio.create_task(self._resample_stale(slot, self._version))
            task.add_done_callback(self._fail_with)

    async def _resample_stale(self, slot: int, version: int) -> bool:
        running, oldest = self._tasks[slot], version + 1 - self._config.max_staleness
        resampled = await self._runner.resample(slot=slot, oldest=oldest, version=version)
        if resampled is not None and self._tasks.get(slot) is running and self._buffer[slot].group is None:
            self._tally.counts["rollouts_resampled"] += len(resampled.members)
            self._buffer.resampled(slot, version=resampled.version)
            self._changed.set()
        return resampled is not None

    def _is_kept(self, group: Group) -> bool:
        """True if the filter keeps the group; a group for which it raises is kept and counted."""
        if self._keep is None:
            return True
        try:
            return bool(self._keep(self._config, group))
        except Exception as error:  # the boundary of a user's function: a failure costs no group, many end the run
            self._tally.add_filter_failure(error)
            return True

    def _is_too_small(self, group: Group) -> bool:
        num_counted = sum(rollout.counting.in_baseline for rollout in group.rollouts)
        return num_counted < self._config.min_rollouts_per_group

    def _complete(self, slot: int, group: Group) -> None:
        """Replaces failed rollouts, or the prompt: after `max_group_repeats` attempts, if it kills workers, if none can begin."""
        entry = self._buffer[slot]
        entry.num_repeats += 1
        deadly = all(rollout.stop_reason is StopReason.WORKER_LOST for rollout in group.rollouts)
        hopeless = deadly or all(rollout.could_not_begin for rollout in group.rollouts)
        if entry.num_repeats > self._config.max_group_repeats or hopeless:
            self._tally.add_given_up(group)
            self._buffer.restart(slot, self._version, prompt=self._source.next())
            return
        self._tally.counts["groups_repeated"] += 1
        counted = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
        finished = {rollout.member: rollout for rollout in counted}
        kept = (
            GroupProgress(prompt_index=entry.prompt.index, version=group.weight_version, finished=finished) if finished else None
        )
        self._buffer.restart(slot, self._version, progress=kept)

    def _expire(self, oldest: int) -> None:
        """Stops groups with tokens older than version `oldest`; their prompts wait to be started again."""
        for slot, group in self._buffer.expire(oldest).items():
            if group is None:
                self._tasks.pop(slot).cancel()
                self._tally.counts["groups_aborted"] += 1
            else:
                self._tally.counts["groups_refused"] += 1

    def _ended(self, slot: int, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(slot) is task:
            del self._tasks[slot]
        self._fail_with(task)

    def _fail_with(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    def _check(self) -> None:
        """Fails the run if the counts since the last batch leave no hope for it."""
        if (error := self._tally.problem()) is not None:
            self._fail(error)
