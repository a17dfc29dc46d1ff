"""`AgentResult`: the result of an agent's work in a workspace, and why it ended."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Ending(str, Enum):
    """The reason why an agent ended."""

    SUBMITTED = "submitted"
    NO_CALL = "no_call"
    """A reply called no tool, as programs of others end."""
    TURNS_USED_UP = "turns_used_up"
    TOKENS_USED_UP = "tokens_used_up"
    """The context was full, or a limit of the session was reached."""
    TIME_USED_UP = "time_used_up"
    PROGRAM_FAILED = "program_failed"
    """A program that ended with an error, or went over a bound of its workspace; `outcome` and `program_end` say how."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentResult:
    """The result of an agent. Example: `AgentResult(ending=Ending.SUBMITTED, about={"turns": 4})`."""

    ending: Ending
    about: dict[str, Any] = field(default_factory=dict)
    """Values that the metadata of the rollout keep besides."""
