"""The rollouts of one prompt side by side: first n of m, what of them is done, and what is left when they end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from vime.rollout.progress import Progress
from vime.rollout.turn_log import TurnLog
from vime.types import Group, Prompt, Rollout, StopReason, rollout_id_of

logger = logging.getLogger(__name__)

RunMember = Callable[[int, TurnLog], Awaitable[Rollout]]
"""Runs one member with its turns."""


class GroupRun:
    """One group at work; `progress` can be read at any time."""

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
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._told = set(self._finished)

    async def run(self, run_member: RunMember) -> Group:
        """The group once `num_wanted` rollouts that count have ended, or all have; the others are aborted."""
        if not self._has_enough():
            self._tasks = {member: asyncio.create_task(self._run(member, run_member)) for member in self._logs}
        results = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for member, result in zip(self._logs, results):
            if isinstance(result, asyncio.CancelledError):
                self._finished[member] = stopped_rollout(self._slot, member, StopReason.ABORTED, "enough others had ended")
            elif isinstance(result, BaseException):
                raise result
        rollouts = [self._finished[member] for member in sorted(self._finished)]
        return Group(prompt=self._prompt, rollouts=rollouts, weight_version=self._version)

    def progress(self) -> Progress:
        """What is done at this moment, failures left out."""
        return Progress(
            prompt_index=self._prompt.index,
            version=self._version,
            finished={member: rollout for member, rollout in self._finished.items() if rollout.counting.in_baseline},
            turns={
                member: saved for member, log in self._logs.items() if member not in self._finished and (saved := log.saved())
            },
        )

    def news(self) -> dict[int, Rollout]:
        """The rollouts that ended since the last call of this, by member, failures left out."""
        new = {member: rollout for member, rollout in self._finished.items() if member not in self._told}
        self._told |= new.keys()
        return {member: rollout for member, rollout in new.items() if rollout.counting.in_baseline}

    async def _run(self, member: int, run_member: RunMember) -> None:
        self._finished[member] = await run_member(member, self._logs[member])
        if self._has_enough():
            for other, task in self._tasks.items():
                if other != member:
                    task.cancel()

    def _has_enough(self) -> bool:
        return sum(rollout.counting.in_baseline for rollout in self._finished.values()) >= self._num_wanted


def stopped_rollout(slot: int, member: int, reason: StopReason, error: str) -> Rollout:
    """A rollout that ended without samples."""
    rollout = Rollout(rollout_id=rollout_id_of(slot, member), group_index=slot, stop_reason=reason, error=error)
    rollout.status = rollout.counting.status
    return rollout
