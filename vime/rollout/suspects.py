"""Decides which work is isolated after a worker is lost, so that innocent work never has to queue behind a suspect.

The work in whose code a worker died (`vime.rollout.black_box`) is run alone from then on. The worker's other work is run among
all work once more. Work that has lost `MAX_SHARED_LOSSES` workers is split into two halves, each in a worker of its own beside
the others; a half that loses its worker is split again, until the work that kills workers is alone. Whatever the black box
says, every loss makes a company smaller, so the search ends.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_SHARED_LOSSES = 2
"""How many shared workers a piece of work may lose before it becomes a suspect."""


@dataclass(eq=False, kw_only=True, slots=True)
class Work:
    """A call of a worker's method, which is repeated when its worker is lost.

    Example: `Work(number=7, method="run_group", arguments={"prompt": …, "slot": 3, …})`.
    """

    number: int
    method: str
    arguments: dict[str, Any]
    heard: dict[int, Any] = field(default_factory=dict)
    """Finished rollouts that its worker has reported, by member."""
    num_losses: int = 0
    is_deadly: bool = False
    """Whether it has lost a worker that had no other work."""

    def resampled(self, members: Collection[int], *, version: int) -> None:
        """Forgets rollouts of a group that are sampled again; what is left of it has no tokens older than `version`."""
        self.heard = {member: rollout for member, rollout in self.heard.items() if member not in members}
        progress = self.arguments["progress"]
        progress = progress.without(members, version=version) if progress is not None else None
        self.arguments |= {"version": version, "progress": progress}


def companies(lost: Sequence[Work], *, culprit: int) -> list[list[Work]]:
    """Groups the suspects of a lost worker into companies, each of which gets a worker of its own; other work is left out.

    `culprit` is the number of the work in whose code the worker died, 0 if there was none.
    """
    for work in lost:
        work.num_losses += 1
    named = [work for work in lost if work.number == culprit]
    suspects = [work for work in lost if work.number != culprit and work.num_losses >= MAX_SHARED_LOSSES]
    half = (len(suspects) + 1) // 2
    return [company for company in (named, suspects[:half], suspects[half:]) if company]
