"""The ways in which rollouts end, and the consequences of each."""

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """Progress of a rollout or sample (the names are slime's)."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class StopReason(str, Enum):
    """The reason why a rollout ended. `COUNTS` gives the consequences of each."""

    ANSWERED = "answered"
    TOKEN_LIMIT = "token_limit"
    TURN_LIMIT = "turn_limit"
    TIME_LIMIT = "time_limit"
    MALFORMED = "malformed"
    REQUEST_REFUSED = "request_refused"
    SERVER_LOST = "server_lost"
    GENERATE_RAISED = "generate_raised"
    REWARD_RAISED = "reward_raised"
    REWARD_TIMEOUT = "reward_timeout"
    SANDBOX_CRASHED = "sandbox_crashed"
    WORKER_LOST = "worker_lost"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counting:
    """The consequences of a stop reason: whether a rollout is trained, is part of the baseline, and is retried."""

    trained: bool
    in_baseline: bool
    retried: bool
    status: Status


_AGENT = {"trained": True, "in_baseline": True, "retried": False}
_INFRASTRUCTURE = {"trained": False, "in_baseline": False, "retried": True}

COUNTS: dict[StopReason, Counting] = {
    StopReason.ANSWERED: Counting(**_AGENT, status=Status.COMPLETED),
    StopReason.TOKEN_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.TURN_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.TIME_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.MALFORMED: Counting(**_AGENT, status=Status.COMPLETED),
    StopReason.REQUEST_REFUSED: Counting(trained=False, in_baseline=False, retried=False, status=Status.FAILED),
    StopReason.SERVER_LOST: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.GENERATE_RAISED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.REWARD_RAISED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.REWARD_TIMEOUT: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.SANDBOX_CRASHED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.WORKER_LOST: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.ABORTED: Counting(trained=False, in_baseline=False, retried=True, status=Status.ABORTED),
}
"""Endings by the agent stay, with the reward it earned; those by the infrastructure are retried, then leave the group."""
