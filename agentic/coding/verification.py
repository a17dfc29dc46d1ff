"""Verifies rows: the reference solution passes the hidden tests, and the untouched repository does not.

Where a row has no lists of tests, they are measured: `fail_to_pass` are those that pass with the reference solution only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentic.coding.grading import GradingConfig, OpenWorkspace
from agentic.coding.task import INSTANCE, Task
from agentic.coding.verdict import Verdict, judge
from vime.errors import ConfigError

PATIENCE_SECONDS, PATIENCE_TIMES = 5.0, 5.0
"""Time limit of the untouched repository, where a bug may loop forever: seconds, and a multiple of the reference's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A row that has been tried. Example: `Verified(instance_id="gcd", row={…}, problem="", num_left_out=0, seconds=1.1)`."""

    instance_id: str
    row: dict[str, Any]
    """The row with its lists of tests."""
    problem: str = ""
    """The reason why the row cannot be used; empty if it can."""
    num_left_out: int = 0
    """Tests that do not pass with the reference solution, and are in none of the lists."""
    seconds: float = 0.0
    """Time of both verdicts."""


async def verify(row: Mapping[str, Any], *, open_workspace: OpenWorkspace, config: GradingConfig) -> Verified:
    """Judges a row's reference solution and its untouched repository. Raises SandboxError if a workspace failed."""
    name = str(row.get(INSTANCE) or "?")
    try:
        task = Task.of(row)
        if not task.patch.strip():
            return Verified(instance_id=name, row=dict(row), problem="there is no reference solution")
        reference = await judge(task, task.patch, open_workspace=open_workspace, config=config)
        patience = replace(config, seconds=min(config.seconds, PATIENCE_SECONDS + PATIENCE_TIMES * reference.seconds))
        untouched = await judge(task, "", open_workspace=open_workspace, config=patience)
    except ConfigError as error:
        return Verified(instance_id=name, row=dict(row), problem=str(error))
    seconds = reference.seconds + untouched.seconds
    if task.test_ids:
        return Verified(instance_id=name, row=dict(row), problem=_problem_of_lists(reference, untouched), seconds=seconds)
    before, after = set(untouched.passed), reference.passed
    mended = [test for test in after if test not in before]
    lists = {"fail_to_pass": mended, "pass_to_pass": [test for test in after if test in before]}
    problem = ""
    if reference.reason not in ("solved", "tests_failed") or not after:
        problem = f"the reference solution ends as {reference.reason}{_first(reference)}"
    elif not mended:
        problem = "every test that passes with the reference solution passes without it"
    elif set(before) - set(after):
        problem = f"the reference solution breaks {sorted(before - set(after))[0]}"
    left_out = len(reference.failed)
    return Verified(instance_id=name, row={**row, **lists}, problem=problem, num_left_out=left_out, seconds=seconds)


def _problem_of_lists(reference: Verdict, untouched: Verdict) -> str:
    if not reference.solved:
        return f"the reference solution ends as {reference.reason}{_first(reference)}"
    if untouched.solved or untouched.mended:
        return "tests of fail_to_pass pass without the reference solution"
    return "" if untouched.kept == 1.0 or untouched.reason != "tests_failed" else "tests of pass_to_pass fail in the repository"


def _first(verdict: Verdict) -> str:
    words = verdict.accusations[:1] or verdict.failed[:1]
    return f" ({words[0]})" if words else ""
