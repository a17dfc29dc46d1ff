"""Checks that coding tasks are graded as they should be: the reference solution 1.0, the untouched repository 0.0.

    python tools/check_tasks.py data/quixbugs.jsonl data/human_eval.jsonl data/exercism_python.jsonl
    python tools/check_tasks.py data/quixbugs.jsonl --only gcd --json tasks.json --markdown results/coding_tasks.md

The reference solution goes the way of an agent's work: it is applied in a workspace, the difference there is the patch, and a
fresh workspace judges it. Prints the tasks that are graded otherwise and those that were excluded when the rows were made, each
by name, and the time per task. It ends with 1 if one is graded otherwise.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_rows import Result, circumstances
from rich.console import Console
from rich.progress import Progress

from agentic.coding.grading import GradingConfig, fresh_workspaces
from agentic.coding.repository import prepare_repository
from agentic.coding.task import Task
from agentic.coding.verdict import judge
from vime.agent.workspace import Workspace
from vime.config import WorkspaceConfig
from vime.files.jsonl import read_lines
from vime.surroundings import settle

TASK_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One task. Example: `Checked(name="quixbugs__gcd", reference=1.0, untouched=0.0, seconds=0.7, untouched_seconds=0.6)`."""

    name: str
    reference: float
    untouched: float
    seconds: float
    """Seconds from opening the agent's workspace to the verdict on the reference solution."""
    untouched_seconds: float
    """Seconds from opening the agent's workspace to the verdict on an empty patch."""
    why: str = ""
    """Words of the verdicts, where one of them is not as it should be."""

    @property
    def is_right(self) -> bool:
        """True if both were graded as they should be."""
        return (self.reference, self.untouched) == (1.0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """All tasks of one file. Example: `Checks(name="quixbugs", tasks=[…], excluded={"quixbugs__x": "…"}, duplicates={})`."""

    name: str
    tasks: list[Checked]
    excluded: dict[str, str] = field(default_factory=dict)
    duplicates: dict[str, str] = field(default_factory=dict)


async def check(row: dict[str, Any], *, config: WorkspaceConfig, seconds: float) -> Checked:
    """Checks one task."""
    task, opened, grading = Task.of(row), fresh_workspaces(config), GradingConfig(seconds=seconds)
    started = time.monotonic()
    reference = await judge(task, await _worked(task, task.patch, config), open_workspace=opened, config=grading)
    between = time.monotonic()
    untouched = await judge(task, await _worked(task, "", config), open_workspace=opened, config=grading)
    ended = time.monotonic()
    why = (
        ""
        if reference.solved and not untouched.solved
        else f"reference {reference.reason} {reference.failed[:1]}, {untouched.reason}"
    )
    return Checked(
        name=task.instance_id,
        reference=reference.score(grading),
        untouched=untouched.score(grading),
        seconds=between - started,
        untouched_seconds=ended - between,
        why=why,
    )


async def _worked(task: Task, patch: str, config: WorkspaceConfig) -> str:
    """The patch of a workspace in which this patch was applied."""
    prepared = await asyncio.to_thread(prepare_repository, task, cache_folder=config.cache_folder)
    async with Workspace.open(prepared, config) as box:
        if patch:
            applied = await box.apply(patch)
            assert applied.succeeded, f"{task.instance_id}: {applied}"
        diff = await box.diff()
    assert diff.reason == "finished", f"{task.instance_id}: {diff}"
    return diff.patch.decode(errors="surrogateescape")


async def check_all(rows: list[dict[str, Any]], *, workers: int, seconds: float, advance: Callable[[], None]) -> list[Checked]:
    """Checks rows, `workers` at a time."""
    places, config = asyncio.Semaphore(workers), WorkspaceConfig()

    async def one(row: dict[str, Any]) -> Checked:
        async with places:
            found = await check(row, config=config, seconds=seconds)
        advance()
        return found

    waiting: list[Awaitable[Checked]] = [one(row) for row in rows]
    return await asyncio.gather(*waiting)


def read_manifest(file: Path) -> dict[str, Any]:
    """The manifest of a file that tools/prepare_data.py made; empty if it has not made it."""
    manifest = file.with_suffix(".manifest.json")
    return json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}


def table(found: list[Checks]) -> str:
    """The results as a Markdown table, with exclusions and wrong grades by name below."""
    lines = [
        "| data set | tasks | reference 1.0 | untouched 0.0 | excluded | seconds per task: median | largest | untouched: median |"
    ]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
    for checks in found:
        times, others = ([getattr(task, name) for task in checks.tasks] or [0.0] for name in ("seconds", "untouched_seconds"))
        right = [sum(task.reference == 1.0 for task in checks.tasks), sum(task.untouched == 0.0 for task in checks.tasks)]
        cells = [checks.name, len(checks.tasks), *right, len(checks.excluded) + len(checks.duplicates)]
        cells += [f"{number:.2f}" for number in (statistics.median(times), max(times), statistics.median(others))]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    notes = [f"- {name} is excluded: {reason}" for checks in found for name, reason in checks.excluded.items()]
    notes += [f"- {name} is excluded: it equals {other}" for checks in found for name, other in checks.duplicates.items()]
    notes += [f"- {task.name} is graded wrongly: {task.why}" for checks in found for task in checks.tasks if not task.is_right]
    return "\n".join([*lines, "", *notes])


def main(arguments: list[str] | None = None) -> int:
    """Checks the files of the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="rows as tools/prepare_data.py writes them")
    parser.add_argument("--only", default="", metavar="WORD", help="tasks with this in their names")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tasks at the same time")
    parser.add_argument("--seconds", type=float, default=TASK_SECONDS, help="limit of the hidden tests of one task")
    parser.add_argument("--json", type=Path, help="write all tasks here")
    parser.add_argument("--markdown", type=Path, help="write the table here, with date, commit, command and machine")
    given = parser.parse_args(arguments)
    result, found = Result(title="Coding tasks"), list[Checks]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for file in given.files:
            rows = [row for row in read_lines(file) if given.only in row["instance_id"]]
            bar, manifest = progress.add_task(file.stem, total=len(rows)), read_manifest(file)
            work = check_all(rows, workers=given.workers, seconds=given.seconds, advance=lambda bar=bar: progress.advance(bar))
            left_out = {name: manifest.get(name, {}) for name in ("excluded", "duplicates")}
            found.append(Checks(name=file.stem, tasks=asyncio.run(work), **left_out))
    text = table(found)
    sys.stdout.write(f"{text}\n")
    if given.json:
        given.json.write_text(json.dumps([asdict(checks) for checks in found], indent=1, ensure_ascii=False) + "\n")
    if given.markdown:
        facts = "\n".join(f"- {line}" for line in circumstances(result))
        given.markdown.write_text(f"# {result.title}\n\n{facts}\n- {given.workers} tasks at the same time\n\n{text}\n")
    return int(any(not task.is_right for checks in found for task in checks.tasks))


if __name__ == "__main__":
    sys.exit(main())
