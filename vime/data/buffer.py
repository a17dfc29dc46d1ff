"""The buffer between generation and training: a queue of slots in the order of admission.

A slot is taken when a prompt is admitted and holds its finished group later. The trainer takes the oldest slots and waits
for them, so that a slow group is never overtaken for ever and nothing finished is dropped.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from vime.types import Group, Prompt


class Buffer:
    """Slots by number, oldest first. A slot without a group is still being generated."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}
        self._groups: dict[int, Group] = {}
        self._next_slot = 0
        self._changed = asyncio.Event()

    @property
    def num_admitted(self) -> int:
        """Slots taken since the run began, consumed ones included."""
        return self._next_slot

    @property
    def num_finished(self) -> int:
        """Finished groups that wait for the trainer."""
        return len(self._groups)

    def admit(self, prompt: Prompt) -> int:
        """Takes the next slot for a prompt."""
        slot = self._next_slot
        self._prompts[slot] = prompt
        self._next_slot += 1
        return slot

    def replace(self, slot: int, prompt: Prompt) -> None:
        """Puts another prompt into a slot whose group was filtered out."""
        assert slot in self._prompts and slot not in self._groups, f"slot {slot} is not being generated"
        self._prompts[slot] = prompt

    def finish(self, slot: int, group: Group) -> None:
        """Stores the finished group of a slot."""
        assert slot in self._prompts and slot not in self._groups, f"slot {slot} is not being generated"
        self._groups[slot] = group
        self._changed.set()

    def unfinished(self) -> dict[int, Prompt]:
        """Prompts of the slots that have no group yet."""
        return {slot: prompt for slot, prompt in self._prompts.items() if slot not in self._groups}

    async def take(self, num_groups: int) -> list[Group]:
        """Waits for the `num_groups` oldest slots and removes them. The caller bounds the wait."""
        while True:
            oldest = sorted(self._prompts)[:num_groups]
            if len(oldest) == num_groups and all(slot in self._groups for slot in oldest):
                for slot in oldest:
                    del self._prompts[slot]
                return [self._groups.pop(slot) for slot in oldest]
            self._changed.clear()
            await self._changed.wait()

    def state(self) -> dict[str, Any]:
        """Finished groups and unfinished prompts, as JSON-ready data."""
        return {
            "next_slot": self._next_slot,
            "prompts": {str(slot): asdict(prompt) for slot, prompt in self._prompts.items()},
            "groups": {str(slot): group.to_dict() for slot, group in self._groups.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores `state`; unfinished prompts are to be generated again."""
        self._next_slot = state["next_slot"]
        self._prompts = {int(slot): Prompt(**prompt) for slot, prompt in state["prompts"].items()}
        self._groups = {int(slot): Group.from_dict(group) for slot, group in state["groups"].items()}
        self._changed.set()
