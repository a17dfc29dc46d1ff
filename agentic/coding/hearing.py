"""Reads the output of the trusted program: only lines with the nonce count, and accusations, which need none."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentic.coding.runner.channel import END

PASSED = "passed"
MAX_ACCUSATIONS = 8
ACCUSATION, MAX_LINE = "('tampered', ", 1000
"""The beginning of a line that is read even without the nonce, and the number of its characters that are read."""


@dataclass(kw_only=True, slots=True)
class Heard:
    """The outcomes of the tests by id, each with those of its setup, call and teardown that are worth a word.

    Example: `Heard(outcomes={"test_a.py::test_one": {"passed"}}, ended=True)`.
    """

    outcomes: dict[str, set[str]] = field(default_factory=dict)
    not_collected: dict[str, str] = field(default_factory=dict)
    """Reasons by file or class."""
    accusations: list[str] = field(default_factory=list)
    """Attempts of the program under test."""
    began: bool = False
    """True if the trusted program came to where the repository's code comes in."""
    blocked: str = ""
    """The reason why hidden tests could not be put into the tree."""
    ended: bool = False
    """True if all tests have been run."""

    def passed(self, name: str) -> bool:
        """True if a test has run and nothing of it failed, was skipped, or failed as expected."""
        return self.outcomes.get(name) == {PASSED}

    def silent(self, canaries: Iterable[str]) -> bool:
        """True if a canary was not run although tests beside it, in its class or module, are reported as run."""
        owners = {_owner(name) for name in self.outcomes}
        return any(name not in self.outcomes and _owner(name) in owners for name in canaries)

    def accuse(self, accusations: Iterable[str]) -> None:
        """Adds accusations, each once and not too many."""
        for accusation in accusations:
            if accusation not in self.accusations and len(self.accusations) < MAX_ACCUSATIONS:
                self.accusations.append(accusation[:200])


def _owner(name: str) -> str:
    return name.partition("[")[0].rpartition("::")[0]


def hear(output: str, *, nonce: str) -> Heard:
    """Reads the output of the trusted program."""
    heard = Heard()
    for line in output.split("\n"):
        _, mark, rest = line.rpartition(nonce)
        if not mark and not line.startswith(ACCUSATION):
            continue
        said = _said(rest if mark else line[:MAX_LINE])
        if said is None:
            continue
        kind, name, value = said
        if kind == "test":
            heard.outcomes.setdefault(name, set()).add(value)
        elif kind == "collect":
            heard.not_collected[name] = value
        elif kind == "tampered":
            heard.accuse([name])
        elif kind == "begin":
            heard.began = True
        elif kind == "blocked":
            heard.blocked = name
        elif (kind, name, value) == END:
            heard.ended = True
    return heard


def _said(text: str) -> tuple[str, str, str] | None:
    """A line as `Channel.say` writes it; None if it is anything else."""
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    right = isinstance(found, tuple) and len(found) == 3 and all(isinstance(part, str) for part in found)
    return found if right else None
