"""The buffer between generation and training: one slot per group, from the admission of its prompt until it is trained.

A group must be trained while its oldest token is at most `max_staleness` versions old. So the trainer takes groups in the order
in which they finish, older weights first, and waits for an unfinished one only if it could not be trained in time otherwise.
Nothing here is looked through as a whole: every call costs the same however many groups are in flight.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

from vime.rollout.progress import Progress
from vime.types import Group, Prompt, as_dict


@dataclass(kw_only=True, slots=True)
class Slot:
    """A prompt on its way: waiting to be started (no version), being generated, or finished (a group).

    Example: `Slot(prompt=…, version=7)` is generated since the servers held version 7.
    """

    prompt: Prompt
    version: int | None = None
    """No token is older; of a finished group, the oldest token's."""
    group: Group | None = None
    progress: Progress | None = None
    num_repeats: int = 0
    """How often its rollouts were run again because too few succeeded."""

    def fits(self, progress: Progress) -> bool:
        """Whether the progress is this prompt's, since it was started last."""
        return progress.prompt_index == self.prompt.index and progress.version == self.version


class Buffer:
    """Slots by number, in the order of admission."""

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
        """Finished groups that wait for the trainer."""
        return sum(map(len, self._finished.values()))

    @property
    def num_generating(self) -> int:
        """Groups in flight."""
        return sum(map(len, self._generating.values()))

    def admit(self, prompt: Prompt) -> int:
        """Takes the next slot for a prompt; it waits to be started."""
        slot = self._next_slot
        self._slots[slot] = Slot(prompt=prompt)
        self._waiting.append(slot)
        self._next_slot += 1
        return slot

    def start(self, version: int, *, max_staleness: int) -> list[int]:
        """Starts all waiting slots with the servers at `version`; progress that would be too old is forgotten."""
        started = list(self._waiting)
        self._waiting.clear()
        for number in started:
            slot = self._slots[number]
            if slot.version is None or slot.progress is None or slot.version < version - max_staleness:
                slot.version, slot.progress = version, None
            self._generating[slot.version].add(number)
        return started

    def restart(self, number: int, version: int, *, prompt: Prompt | None = None, progress: Progress | None = None) -> None:
        """Generates a slot again: with another prompt, or with what is left of its group."""
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
        """Removes and returns `num_groups` groups to be trained at `version`, by slot; None if it must be waited for some.

        Of those left behind, all but `num_spare` can still be trained in time; unless nothing is generated for which waiting
        would help, as after a resume with a smaller bound.
        """
        chosen: dict[int, int] = {}
        for sampled in sorted(self._finished):
            if sampled >= version - max_staleness:
                chosen[sampled] = min(num_groups - sum(chosen.values()), len(self._finished[sampled]))
        if sum(chosen.values()) < num_groups:
            return None
        left = generating = 0
        for sampled in sorted({*self._finished, *self._generating}):
            generating += len(self._generating.get(sampled, ()))
            left += len(self._finished.get(sampled, ())) + len(self._generating.get(sampled, ())) - chosen.get(sampled, 0)
            if generating and left > max(0, sampled + max_staleness - version) * num_groups + num_spare:
                return None
        numbers = sorted(self._finished[sampled].popleft() for sampled, count in chosen.items() for _ in range(count))
        self._forget_empty()
        groups = [self._slots.pop(number).group for number in numbers]
        return [group for group in groups if group is not None]

    def expire(self, oldest: int) -> dict[int, Group | None]:
        """Slots with tokens older than version `oldest` wait to be started anew; returns the groups of the finished ones."""
        numbers: list[int] = []
        for held in (self._generating, self._finished):
            numbers += [number for version in list(held) if version < oldest for number in held.pop(version)]
        expired = {number: self._slots[number].group for number in sorted(numbers)}
        for number in expired:
            self._slots[number] = Slot(prompt=self._slots[number].prompt)
        self._waiting.extendleft(reversed(expired))
        return expired

    def state(self, progress: dict[int, Progress] | None = None) -> dict[str, Any]:
        """All slots as JSON-ready data, with the progress of those in flight."""
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
        """Restores `state`; unfinished slots wait to be started."""
        self._next_slot = state["next_slot"]
        self._slots, self._waiting = {}, deque()
        self._generating, self._finished = defaultdict(set), defaultdict(deque)
        for number, data in sorted((int(number), data) for number, data in state["slots"].items()):
            group = None if data["group"] is None else Group.from_dict(data["group"])
            progress = None if data["progress"] is None else Progress.from_dict(data["progress"])
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
