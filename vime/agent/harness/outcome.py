"""The end of an agent's program, as its own output tells it; and the interface of every harness."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from vime.agent.command import Command, CommandEnd

REASON_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of an agent. Example: `Outcome(ended_well=True, answer="The bug is fixed.")`."""

    ended_well: bool
    """True if the agent itself said that it is done."""
    reason: str = ""
    """The reason why it ended otherwise, in the agent's words."""
    answer: str = ""
    """The agent's last message."""


class Harness(Protocol):
    """Describes how one agent is started in a folder and pointed at a session, and how its end is read."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task, and its settings as files in the folder. Raises ConfigError if it is not installed."""
        ...

    def outcome(self, end: CommandEnd) -> Outcome:
        """The outcome of a program that has ended."""
        ...


def events_of(output: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines of an output, whose beginning may be missing."""
    for line in output.splitlines():
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, dict):
            yield found


def silent_end(end: CommandEnd) -> Outcome:
    """The outcome of a program that did not say how it ended."""
    words = (end.stderr.strip() or end.stdout.strip())[-REASON_CHARACTERS:]
    return Outcome(ended_well=False, reason=f"it ended with exit code {end.exit_code}: {words}")
