"""Who is suspected when a worker is lost, and with whom it goes on: innocent work never waits for its turn behind a suspect.

Of all that a lost worker had at work, the work in whose code it died (`vime.rollout.black_box`) runs alone from then on. The
others go on among all work once more. What has lost `MAX_SHARED_LOSSES` workers is halved, each half in a worker of its own,
beside the others; a half that loses its worker is halved again, until what kills workers is alone. Whatever the black box says,
every loss makes a company smaller, so the search ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_SHARED_LOSSES = 2
"""Workers that may be lost under a piece of work among others; then it is a suspect."""


@dataclass(eq=False, kw_only=True, slots=True)
class Work:
    """A call of a worker's method, which is made again when its worker is lost.

    Example: `Work(number=7, method="run_group", arguments={"prompt": …, "slot": 3, …})`.
    """

    number: int
    method: str
    arguments: dict[str, Any]
    heard: dict[int, Any] = field(default_factory=dict)
    """What its worker has told that is done of it, by member."""
    num_losses: int = 0
    is_deadly: bool = False
    """It has lost a worker that had nothing else to do."""


def companies(lost: Sequence[Work], *, culprit: int) -> list[list[Work]]:
    """Those of the lost work that go on apart from all other, in companies of one worker each; the rest goes on among all.

    `culprit` is the number of the work in whose code the worker died, 0 if nobody's.
    """
    for work in lost:
        work.num_losses += 1
    named = [work for work in lost if work.number == culprit]
    suspects = [work for work in lost if work.number != culprit and work.num_losses >= MAX_SHARED_LOSSES]
    half = (len(suspects) + 1) // 2
    return [company for company in (named, suspects[:half], suspects[half:]) if company]
