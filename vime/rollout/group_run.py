"""Runs the rollouts of one prompt side by side until the first n of m have finished, and reports their progress."""

import asyncio
from collections.abc import Awaitable, Callable

from vime.rollout.progress import Progress
from vime.rollout.turn_log import TurnLog
from vime.types import Group, Prompt, Rollout, StopReason, rollout_id_of

RunMember = Callable[[int, TurnLog], Awaitable[Rollout]]
"""Runs the rollout of one member, given the turns kept from an earlier run."""


class GroupRun:
    """One group being generated; `progress` can be called at any time."""

    def __init__(
        self, prompt: Prompt, *, slot: int, version: int, num_rollouts: int, num_wanted: int, progress: Progress | None
    ) -> None:
        progress = progress or Progress(prompt_index=prompt.index, version=version)
        self._prompt, self._slot, self._version = prompt, slot, version
        self._num_wanted = num_wanted
        self._finished = dict(progress.finished)
        first = max([*self._finished, *progress.turns, -1]) + 1
        missing = num_rollouts - len(self._finished)
        members = [*progress.turns, *range(first, first + missing)][:missing]
        self._logs = {member: TurnLog(progress.turns.get(member)) for member in members}
        self._told = set(self._finished)

    async def run(self, run_member: RunMember) -> Group:
        """Returns the group once `num_wanted` rollouts that count have finished, or all have; aborts the others."""
        tasks: dict[asyncio.Future[Rollout], int] = {}
        if not self._has_enough():
            tasks = {asyncio.ensure_future(run_member(member, log)): member for member, log in self._logs.items()}
        running = set(tasks)
        try:
            while running and not self._has_enough():
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self._finished |= {tasks[task]: task.result() for task in ended}
        finally:
            for task in running:
                task.cancel()
        for task, result in zip(running, await asyncio.gather(*running, return_exceptions=True)):
            if isinstance(result, asyncio.CancelledError):
                result = stopped_rollout(self._slot, tasks[task], StopReason.ABORTED, "enough others had ended")
            elif isinstance(result, BaseException):
                raise result
            self._finished[tasks[task]] = result
        rollouts = [self._finished[member] for member in sorted(self._finished)]
        return Group(index=self._slot, prompt=self._prompt, rollouts=rollouts, weight_version=self._version)

    def progress(self) -> Progress:
        """What is complete at this moment, without failures."""
        return Progress(
            prompt_index=self._prompt.index,
            version=self._version,
            finished={member: rollout for member, rollout in self._finished.items() if rollout.counting.in_baseline},
            turns={
                member: saved for member, log in self._logs.items() if member not in self._finished and (saved := log.saved())
            },
        )

    def news(self) -> dict[int, Rollout]:
        """The rollouts that finished since the last call of this method, by member, without failures."""
        new = {member: rollout for member, rollout in self._finished.items() if member not in self._told}
        self._told |= new.keys()
        return {member: rollout for member, rollout in new.items() if rollout.counting.in_baseline}

    def _has_enough(self) -> bool:
        return sum(rollout.counting.in_baseline for rollout in self._finished.values()) >= self._num_wanted


def stopped_rollout(slot: int, member: int, reason: StopReason, error: str) -> Rollout:
    """A rollout that was stopped and has no samples."""
    rollout = Rollout(rollout_id=rollout_id_of(slot, member), group_index=slot, stop_reason=reason, error=error)
    rollout.status = rollout.counting.status
    return rollout
