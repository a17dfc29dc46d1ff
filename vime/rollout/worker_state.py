"""What a worker says of itself when it is asked whether it gets on."""

from dataclasses import dataclass, field

from vime.types import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """Whether a worker gets on, and what of its groups has ended since it was asked last.

    Example: 64 rollouts at work, 1,000 ended, two of them in a group that has not, 90 s without waiting for the infrastructure:
    `WorkerState(num_running=64, num_ended=1000, active_seconds=90.0, news={7: {0: Rollout(…), 3: Rollout(…)}})`, by the work's
    number and the member.
    """

    num_running: int
    num_ended: int
    active_seconds: float
    """Since it began, without the time in which the clock of an agent stood."""
    news: dict[int, dict[int, Rollout]] = field(default_factory=dict)
