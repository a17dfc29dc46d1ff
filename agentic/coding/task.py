"""A row of a coding data set as a task: a repository, a problem statement, hidden tests, and the reference patch.

Rows of SWE-bench, SWE-Gym and SWE-smith can be read as they are, once `repo` names a local clone; lists may be JSON texts, and
`FAIL_TO_PASS` may be in capitals. `tools/prepare_data.py` makes rows of other sources.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from vime.errors import ConfigError, Problem
from vime.types import Sample

STATEMENT, INSTANCE = "problem_statement", "instance_id"
SOURCES = ("repo", "archive", "files")
"""Alternative columns that name the repository."""
KEY = "data"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task, with exactly one of `files`, `archive` and `repo`.

    Example: `Task(instance_id="gcd", problem_statement="gcd(35, 21) never returns.", files={"gcd.py": "def gcd(a, b): …"},
    patch="diff --git a/gcd.py …", tests={"test_gcd.py": "…"}, fail_to_pass=("test_gcd.py::test_gcd",))`.
    """

    instance_id: str
    problem_statement: str
    patch: str = ""
    """The reference solution as a patch of the repository; empty if it is not known."""
    test_patch: str = ""
    """A patch of the repository that brings the hidden tests."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """Hidden test files by path, beside or instead of `test_patch`."""
    fail_to_pass: tuple[str, ...] = ()
    """pytest's ids of the tests that fail before the problem is solved and pass after it."""
    pass_to_pass: tuple[str, ...] = ()
    """Ids of the tests that pass before and must pass after."""
    files: Mapping[str, str] | None = None
    """The repository itself, for a small one: texts by path."""
    archive: str = ""
    """A tar or zip archive with the repository."""
    repo: str = ""
    """A folder with a git repository, or a plain folder if `base_commit` is empty."""
    base_commit: str = ""
    bug_patch: str = ""
    """A patch of the repository that is applied before the agent starts, as SWE-smith's plants a bug."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Task":
        """Reads a row. Raises ConfigError with everything that is wrong with it."""
        name, problems = str(row.get(INSTANCE) or ""), list[str]()
        given = [column for column in SOURCES if row.get(column)]
        if not name:
            problems.append(f"the row has no {INSTANCE}")
        if len([column for column in given if column != "repo"]) > 1 or not given:
            there = ", ".join(given) or "none"
            problems.append(f"the repository is given by exactly one of {', '.join(SOURCES)}; there is {there}")
        lists = {column: _list(row, column, problems) for column in ("fail_to_pass", "pass_to_pass")}
        files = _texts(row, "files", problems) if "files" in given else None
        tests = _texts(row, "tests", problems)
        if problems:
            raise _error(name, problems)
        own = "archive" if "archive" in given else "files" if "files" in given else "repo"
        return cls(
            instance_id=name,
            problem_statement=str(row.get(STATEMENT) or ""),
            patch=str(row.get("patch") or ""),
            test_patch=str(row.get("test_patch") or ""),
            tests=tests,
            files=files,
            archive=str(row["archive"]) if own == "archive" else "",
            repo=str(row["repo"]) if own == "repo" else "",  # beside files, SWE-bench's `repo` is a name
            base_commit=str(row.get("base_commit") or "") if own == "repo" else "",
            bug_patch=str(row.get("bug_patch") or ""),
            **lists,
        )

    @classmethod
    def of_sample(cls, sample: Sample) -> "Task":
        """The task of a rollout: its metadata are the row, and its question is the problem statement."""
        return cls.of({STATEMENT: sample.question if sample.prompt else "", **sample.metadata})

    def check_source(self) -> None:
        """Raises ConfigError if the archive or the folder of the repository is not there."""
        if self.archive and not Path(self.archive).expanduser().is_file():
            raise _error(self.instance_id, [f"there is no archive {self.archive}: give a path from {Path.cwd()}"])
        if self.repo and not Path(self.repo).expanduser().is_dir():
            remedy = "clone it and give its folder, or give an archive or files"
            raise _error(self.instance_id, [f"repo={self.repo} is no folder: {remedy}"])

    @property
    def test_ids(self) -> tuple[str, ...]:
        """The ids of all tests that must pass."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def is_inside(path: str) -> bool:
    """True if a path of a row stays in the repository, and out of its `.git`."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and ".git" not in parts and "\0" not in path


def _list(row: Mapping[str, Any], column: str, problems: list[str]) -> tuple[str, ...]:
    value = row.get(column, row.get(column.upper()))
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            problems.append(f"{column} is neither a list nor the JSON text of one: {value[:60]!r}")
            return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) and entry for entry in value):
        problems.append(f"{column} must be a list of test ids, such as tests/test_a.py::test_one")
        return ()
    strange = [entry for entry in value if "::" not in entry]
    if strange:
        problems.append(f"{column} must hold ids of pytest, such as tests/test_a.py::test_one; {strange[0]!r} is none")
    return tuple(dict.fromkeys(value))


def _texts(row: Mapping[str, Any], column: str, problems: list[str]) -> dict[str, str]:
    value = row.get(column)
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            problems.append(f"{column} is neither a mapping nor the JSON text of one: {value[:60]!r}")
            return {}
    if not value:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        problems.append(f"{column} must map paths to texts")
        return {}
    outside = [path for path in value if not is_inside(path)]
    if outside:
        problems.append(f"{column} names paths outside of the repository: {', '.join(outside[:3])}")
    return dict(value)


def _error(name: str, problems: list[str]) -> ConfigError:
    return ConfigError([Problem(key=f"{KEY}[{name}]", value="row", remedy=problem) for problem in problems])
