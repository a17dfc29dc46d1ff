"""The buffer between generation and training: one slot per group, from the admission of its prompt until it is trained.

A group must be trained while its oldest token is at most `max_staleness` versions old. So the trainer takes groups in the order
in which they finish, older weights first, and waits for an unfinished one only if it could not be trained in time otherwise. The
finished rollouts of a group that is then `late` can be sampled again, so that it can be trained later.
No call iterates over all slots, so its cost does not grow with the number of groups in flight.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

from vime.types import Group, Prompt, as_dict
from vime.workers.group_run import GroupProgress


@dataclass(kw_only=True, slots=True)
class Slot:
    """A prompt that waits to be started (without a version), is being generated, or is finished (with its group).

    Example: the generation of `Slot(prompt=…, version=7)` began when the servers held version 7.
    """

    prompt: Prompt
    version: int | None = None
    """The servers' version when generation began; for a finished group, the version of its oldest token."""
    group: Group | None = None
    progress: GroupProgress | None = None
    num_repeats: int = 0
    """Number of times that rollouts were run again because too few of the group had succeeded."""

    def fits(self, progress: GroupProgress) -> bool:
        """True if the progress belongs to this prompt and to its latest start."""
        return progress.prompt_index == self.prompt.index and progress.version == self.version


class Buffer:
    """All slots, by number and in the order of admission."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._waiting: deque[int] = deque()
        self._generating: defaultdict[int, set[int]] = defaultdict(set)
        self._finished: defaultdict[int, deque[int]] = defaultdict(deque)
        self._next_slot = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, slot: int) -> Slot:
        return self._slots[slot]

    @property
    def num_finished(self) -> int:
        """Number of finished groups that wait for the trainer."""
        return sum(map(len, self._finished.values()))

    @property
    def num_generating(self) -> int:
        """Number of groups that are being generated."""
        return sum(map(len, self._generating.values()))

    def admit(self, prompt: Prompt) -> int:
        """Assigns the next slot to a prompt, which then waits to be started; returns the slot's number."""
        slot = self._next_slot
        self._slots[slot] = Slot(prompt=prompt)
        self._waiting.append(slot)
        self._next_slot += 1
        return slot

    def start(self, version: int, *, max_staleness: int) -> list[int]:
        """Starts all waiting slots with the servers at `version`, drops progress that is too old; returns their numbers."""
        started = list(self._waiting)
        self._waiting.clear()
        for number in started:
            slot = self._slots[number]
            if slot.version is None or slot.progress is None or slot.version < version - max_staleness:
                slot.version, slot.progress = version, None
            self._generating[slot.version].add(number)
        return started

    def restart(self, number: int, version: int, *, prompt: Prompt | None = None, progress: GroupProgress | None = None) -> None:
        """Generates a slot again, with another prompt or with the remaining rollouts of its group."""
        slot = self._take_out(number)
        if prompt is not None:
            slot.prompt, slot.num_repeats = prompt, 0
        slot.progress = progress
        if progress is None or slot.version is None:
            slot.version = version
        self._generating[slot.version].add(number)

    def finish(self, number: int, group: Group) -> None:
        """Stores the finished group of a slot."""
        slot = self._take_out(number)
        slot.group, slot.progress, slot.version = group, None, group.oldest_version
        self._finished[slot.version].append(number)

    def take(self, num_groups: int, *, version: int, max_staleness: int, num_spare: int = 0) -> list[Group] | None:
        """Removes and returns `num_groups` groups to train at `version`, or None if the batch must wait for unfinished groups.

        Groups are ordered by slot. All but `num_spare` of the remaining groups can still be trained in time, unless waiting would
        not help because nothing relevant is being generated, as after resuming with a smaller bound.
        """
        chosen = self._chosen(num_groups, oldest=version - max_staleness)
        if chosen is None:
            return None
        if self._due(chosen, num_groups, version=version, max_staleness=max_staleness, num_spare=num_spare) is not None:
            return None
        numbers = sorted(self._finished[sampled].popleft() for sampled, count in chosen.items() for _ in range(count))
        self._forget_empty()
        groups = [self._slots.pop(number).group for number in numbers]
        return [group for group in groups if group is not None]

    def give_back(self, group: Group) -> None:
        """Puts a group that `take` has removed into its slot again, before the others of its version."""
        version = group.oldest_version
        self._slots[group.index] = Slot(prompt=group.prompt, version=version, group=group)
        self._finished[version].appendleft(group.index)

    def late(self, num_groups: int, *, version: int, max_staleness: int, num_spare: int = 0) -> list[int]:
        """Unfinished groups that a batch waits for although there are enough others; none until half of all groups have finished.

        Before that, their rollouts are not slower than most.
        """
        chosen = self._chosen(num_groups, oldest=version - max_staleness)
        if chosen is None or 2 * self.num_finished < len(self):
            return []
        due = self._due(chosen, num_groups, version=version, max_staleness=max_staleness, num_spare=num_spare)
        held = self._generating.items()
        return [] if due is None else sorted(number for sampled, numbers in held if sampled <= due for number in numbers)

    def _chosen(self, num_groups: int, *, oldest: int) -> dict[int, int] | None:
        """Numbers of finished groups of each version in the next batch, None if there are too few."""
        chosen: dict[int, int] = {}
        for sampled in sorted(self._finished):
            if sampled >= oldest:
                chosen[sampled] = min(num_groups - sum(chosen.values()), len(self._finished[sampled]))
        return chosen if sum(chosen.values()) == num_groups else None

    def _due(self, chosen: dict[int, int], num_groups: int, *, version: int, max_staleness: int, num_spare: int) -> int | None:
        """The last version whose unfinished groups could not all be trained in time after the batch `chosen`, None if all can."""
        due = None
        left = generating = 0
        for sampled in sorted({*self._finished, *self._generating}):
            generating += len(self._generating.get(sampled, ()))
            left += len(self._finished.get(sampled, ())) + len(self._generating.get(sampled, ())) - chosen.get(sampled, 0)
            if generating and left > max(0, sampled + max_staleness - version) * num_groups + num_spare:
                due = sampled
        return due

    def resampled(self, number: int, *, version: int) -> None:
        """Notes that a group being generated has no tokens older than `version` any more."""
        slot = self._take_out(number)
        slot.version = version
        self._generating[version].add(number)

    def expire(self, oldest: int) -> dict[int, Group | None]:
        """Resets slots with tokens older than version `oldest` to waiting; returns their groups (None if unfinished) by slot."""
        numbers: list[int] = []
        for held in (self._generating, self._finished):
            numbers += [number for version in list(held) if version < oldest for number in held.pop(version)]
        expired = {number: self._slots[number].group for number in sorted(numbers)}
        for number in expired:
            self._slots[number] = Slot(prompt=self._slots[number].prompt)
        self._waiting.extendleft(reversed(expired))
        return expired

    def state(self, progress: dict[int, GroupProgress] | None = None) -> dict[str, Any]:
        """All slots as data for JSON, including the progress of unfinished groups."""
        slots = {}
        for number, slot in self._slots.items():
            known = (progress or {}).get(number, slot.progress)
            if known is not None and (slot.group is not None or not known.has_any() or not slot.fits(known)):
                known = None
            slots[str(number)] = {
                "prompt": as_dict(slot.prompt),
                "version": slot.version,
                "group": None if slot.group is None else slot.group.to_dict(),
                "progress": None if known is None else known.to_dict(),
                "num_repeats": slot.num_repeats,
            }
        return {"next_slot": self._next_slot, "slots": slots}

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned; unfinished slots wait to be started."""
        self._next_slot = state["next_slot"]
        self._slots, self._waiting = {}, deque()
        self._generating, self._finished = defaultdict(set), defaultdict(deque)
        for number, data in sorted((int(number), data) for number, data in state["slots"].items()):
            group = None if data["group"] is None else Group.from_dict(data["group"])
            progress = None if data["progress"] is None else GroupProgress.from_dict(data["progress"])
            prompt = Prompt(**data["prompt"])
            self._slots[number] = Slot(
                prompt=prompt, version=data["version"], group=group, progress=progress, num_repeats=data["num_repeats"]
            )
            if group is None:
                self._waiting.append(number)
            else:
                self._finished[data["version"]].append(number)

    def _take_out(self, number: int) -> Slot:
        slot = self._slots[number]
        assert slot.version is not None and number in self._generating[slot.version], f"slot {number} is not being generated"
        self._generating[slot.version].remove(number)
        self._forget_empty()
        return slot

    def _forget_empty(self) -> None:
        for held in (self._generating, self._finished):
            for version in [version for version, numbers in held.items() if not numbers]:
                del held[version]
