"""Runs the rollouts of one prompt side by side until the first n of m have finished, and reports their progress."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from vime.trajectory.trajectory import Trajectory
from vime.types import Group, Prompt, Rollout, StopReason, Turn, rollout_id_of


@dataclass(kw_only=True, slots=True)
class GroupProgress:
    """The finished rollouts of a group, and the turns of unfinished ones, by member.

    Example with four rollouts, where 0 and 2 are finished and 1 has two turns: `GroupProgress(prompt_index=7, version=3,
    finished={0: …, 2: …}, turns={1: [turn, turn]})`. All of it belongs to one prompt, and its tokens are of `version` or newer.
    """

    prompt_index: int
    version: int
    finished: dict[int, Rollout] = field(default_factory=dict)
    turns: dict[int, list[Turn]] = field(default_factory=dict)

    def has_any(self) -> bool:
        """True if anything is worth keeping."""
        return bool(self.finished) or any(self.turns.values())

    def with_finished(self, finished: dict[int, Rollout]) -> "GroupProgress":
        """This progress with more finished rollouts, whose turns are dropped."""
        finished = {**self.finished, **finished}
        turns = {member: turns for member, turns in self.turns.items() if member not in finished}
        return GroupProgress(prompt_index=self.prompt_index, version=self.version, finished=finished, turns=turns)

    def without(self, members: Collection[int], *, version: int) -> "GroupProgress":
        """This progress without the finished rollouts of some members; the rest has no tokens older than `version`."""
        finished = {member: rollout for member, rollout in self.finished.items() if member not in members}
        return GroupProgress(prompt_index=self.prompt_index, version=version, finished=finished, turns=self.turns)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_dict` reads it back equal."""
        return {
            "prompt_index": self.prompt_index,
            "version": self.version,
            "finished": {str(member): rollout.to_dict() for member, rollout in self.finished.items()},
            "turns": {str(member): [turn.to_dict() for turn in turns] for member, turns in self.turns.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "GroupProgress":
        """Reads what `to_dict` wrote."""
        return cls(
            prompt_index=data["prompt_index"],
            version=data["version"],
            finished={int(member): Rollout.from_dict(rollout) for member, rollout in data["finished"].items()},
            turns={int(member): [Turn(**turn) for turn in turns] for member, turns in data["turns"].items()},
        )


RunMember = Callable[[int, Trajectory], Awaitable[Rollout]]
"""Runs the rollout of one member, given its trajectory with the replies kept from an earlier run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resampled:
    """The resampling of a group's stale rollouts: no token is older than `version` now.

    Example: members 0 and 2 had finished under version 3, and member 1 is still at its first tool: `Resampled(version=7,
    members=(0, 2))`.
    """

    version: int
    members: tuple[int, ...]


class GroupRun:
    """One group being generated; `progress` and `resample` can be called at any time."""

    def __init__(
        self, prompt: Prompt, *, slot: int, version: int, num_rollouts: int, num_wanted: int, progress: GroupProgress | None
    ) -> None:
        progress = progress or GroupProgress(prompt_index=prompt.index, version=version)
        self._prompt, self._slot, self._version = prompt, slot, version
        self._num_wanted = num_wanted
        self._finished = dict(progress.finished)
        first = max([*self._finished, *progress.turns, -1]) + 1
        missing = num_rollouts - len(self._finished)
        members = [*progress.turns, *range(first, first + missing)][:missing]
        self._trajectories = {member: Trajectory(progress.turns.get(member, ())) for member in members}
        self._told = set(self._finished)
        self._tasks: dict[asyncio.Future[Rollout], int] = {}
        """Rollouts at work, and their members."""
        self._run_member: RunMember | None = None
        """Runs a rollout; None before the rollouts begin and after enough of them have ended."""
        self._joined = asyncio.Event()
        """Set when rollouts are added to those at work."""

    async def run(self, run_member: RunMember) -> Group:
        """Returns the group once `num_wanted` rollouts that count have finished, or all have; aborts the others."""
        if not self._has_enough():
            self._run_member = run_member
            self._begin(self._trajectories)
        try:
            while self._tasks and not self._has_enough():
                await self._one_ends()
        finally:
            self._run_member = None
            for task in self._tasks:
                task.cancel()
        for task, result in zip(self._tasks, await asyncio.gather(*self._tasks, return_exceptions=True)):
            if isinstance(result, asyncio.CancelledError):
                result = stopped_rollout(self._slot, self._tasks[task], StopReason.ABORTED, "enough others had ended")
            elif isinstance(result, BaseException):
                raise result
            self._finished[self._tasks[task]] = result
        rollouts = [self._finished[member] for member in sorted(self._finished)]
        return Group(index=self._slot, prompt=self._prompt, rollouts=rollouts, weight_version=self._version)

    def progress(self) -> GroupProgress:
        """The part that is complete at this moment, without failures."""
        return GroupProgress(
            prompt_index=self._prompt.index,
            version=self._version,
            finished={member: rollout for member, rollout in self._finished.items() if rollout.counting.in_baseline},
            turns={
                member: saved
                for member, one in self._trajectories.items()
                if member not in self._finished and (saved := one.saved())
            },
        )

    def news(self) -> dict[int, Rollout]:
        """The rollouts that finished since the last call of this method, by member, without failures."""
        new = {member: rollout for member, rollout in self._finished.items() if member not in self._told}
        self._told |= new.keys()
        return {member: rollout for member, rollout in new.items() if rollout.counting.in_baseline}

    def resample(self, *, oldest: int, version: int) -> Resampled | None:
        """Samples the finished rollouts with tokens older than `oldest` again, from the servers' `version`.

        Rollouts at work go on, however long they have taken, so that none is left out because it is slow. Returns None, and
        nothing changes, if one of them has such tokens itself, or a call in flight that may give some.
        """
        if self._run_member is None:
            return None
        unfinished = [self._trajectories[member].oldest_version(unknown=self._version) for member in self._tasks.values()]
        if any(known is not None and known < oldest for known in unfinished):
            return None
        finished = {member: rollout.oldest_version for member, rollout in self._finished.items()}
        stale = {member for member, known in finished.items() if known is not None and known < oldest}
        kept = [*unfinished, *(known for member, known in finished.items() if member not in stale)]
        self._version = min([version, *(known for known in kept if known is not None)])
        self._told -= stale
        for member in stale:
            del self._finished[member]
            self._trajectories[member] = Trajectory()
        self._begin(stale)
        self._joined.set()
        return Resampled(version=self._version, members=tuple(sorted(stale)))

    def _begin(self, members: Iterable[int]) -> None:
        assert self._run_member is not None, f"the group of slot {self._slot} does not run"
        self._tasks |= {asyncio.ensure_future(self._run_member(member, self._trajectories[member])): member for member in members}

    async def _one_ends(self) -> None:
        """Waits until a rollout has ended, or until there are new ones to wait for."""
        self._joined.clear()
        joined = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait({*self._tasks, joined}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
        for task in [task for task in self._tasks if task.done()]:
            member = self._tasks.pop(task)
            self._trajectories.pop(member, None)  # its samples have the tokens now
            self._finished[member] = task.result()

    def _has_enough(self) -> bool:
        return sum(rollout.counting.in_baseline for rollout in self._finished.values()) >= self._num_wanted


def stopped_rollout(slot: int, member: int, reason: StopReason, error: str) -> Rollout:
    """A rollout that was stopped and has no samples."""
    rollout = Rollout(rollout_id=rollout_id_of(slot, member), group_index=slot, stop_reason=reason, error=error)
    rollout.status = rollout.counting.status
    return rollout
