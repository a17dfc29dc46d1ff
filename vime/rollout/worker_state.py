"""`WorkerState`: what a worker reports when its pool checks on it."""

from dataclasses import dataclass, field

from vime.types import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """How much a worker has done, and which rollouts of unfinished groups have ended since its last report.

    Example: 64 rollouts are running, 1,000 have ended, two of them in an unfinished group, and 90 s were not spent on waiting
    for the infrastructure: `WorkerState(num_running=64, num_ended=1000, active_seconds=90.0, news={7: {0: Rollout(…), 3:
    Rollout(…)}})`, where the keys are the number of the work and the member.
    """

    num_running: int
    num_ended: int
    active_seconds: float
    """Time since the worker began, without the time during which the clock of any agent was stopped."""
    news: dict[int, dict[int, Rollout]] = field(default_factory=dict)
