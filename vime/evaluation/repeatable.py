"""Ends a run with `deterministic=true` where a time limit or a fault decided a result, which another run might not repeat."""

from collections.abc import Iterable

from vime.errors import RepeatabilityError
from vime.types import Rollout, StopReason

BY_CHANCE = (
    StopReason.TIME_LIMIT,
    StopReason.SERVER_LOST,
    StopReason.SANDBOX_CRASHED,
    StopReason.REWARD_TIMEOUT,
    StopReason.WORKER_LOST,
)
"""Stop reasons that depend on time or on faults."""
COUNTS = ("tool_timed_out", "expert_timed_out", "judge_timeouts")
"""Counters of a rollout that are above 0 if a time limit ended something in it."""


def check_repeatable(rollouts: Iterable[Rollout]) -> None:
    """Raises `RepeatabilityError` for the first rollout whose result a time limit or a fault decided."""
    for rollout in rollouts:
        found = [name for name in COUNTS if rollout.counts.get(name)]
        if rollout.stop_reason in BY_CHANCE:
            found.insert(0, rollout.stop_reason.value)
        if found:
            why = f" ({rollout.error})" if rollout.error else ""
            raise RepeatabilityError(
                f"rollout {rollout.rollout_id} has {', '.join(found)}{why}: another run of this seed need not have that, and "
                "deterministic=true was asked for. Raise the limit, mend the fault or switch deterministic off, then go on from "
                "the last checkpoint with resume=true."
            )
