"""Makes, verifies and deduplicates the rows of a coding data set, for tools/prepare_data.py.

Each row's reference solution must pass its hidden tests in a workspace, and its untouched repository must not. A training set
leaves out rows that an evaluation set in the same folder has too, by their statement or their reference solution.
"""

import asyncio
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from row_files import PreparationError, holds_rows, read_rows

from agentic.coding.duplicates import without_duplicates
from agentic.coding.grading import GradingConfig, fresh_workspaces
from agentic.coding.sources import exercism, human_eval, mbpp, quixbugs, swe
from agentic.coding.verification import Verified, verify
from vime.config import WorkspaceConfig
from vime.files.jsonl import read_lines, write_lines

Rows = Callable[..., Iterable[dict[str, Any]]]
SOURCES: dict[str, Rows] = {
    "exercism": exercism.rows,
    "quixbugs": quixbugs.rows,
    "human_eval": human_eval.rows,
    "mbpp": mbpp.rows,
}
SWE = "swe"
"""Rows of SWE-bench and its like, which name clones of repositories."""
TASK_SECONDS = 60.0
"""Limit of the hidden tests of one task while it is verified."""


def task_rows(entry: dict[str, Any], paths: list[Path], *, repositories: Path | None) -> list[dict[str, Any]]:
    """The rows of an entry of the table from local files. Raises `PreparationError` if they do not fit the entry."""
    options = entry.get("options", {})
    if entry["tasks"] != SWE:
        if len(paths) != 1:
            raise PreparationError(f"{entry['tasks']} is made of one file or folder, not of {len(paths)}")
        return list(SOURCES[entry["tasks"]](_unpacked(paths[0]), **options))
    if repositories is None or not repositories.is_dir():
        raise PreparationError("these rows name repositories: clone them into one folder and give it as --repositories FOLDER")
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    found = (row for file in files if holds_rows(file) for row in read_rows(file))
    return list(swe.rows(found, repositories=repositories))


def _unpacked(path: Path) -> Path:
    """The one folder in an archive, unpacked beside it; any other path as it is."""
    if not path.name.endswith((".tar.gz", ".tgz")):
        return path
    folder = path.with_name(f"{path.name}.unpacked")
    if not folder.is_dir():
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 else folder


def others_of(name: str, entry: dict[str, Any], table: dict[str, dict[str, Any]], out: Path) -> Iterator[dict[str, Any]]:
    """The rows that a training set must not have: those of prepared evaluation sets of the same method."""
    for other, about in table.items():
        if entry["role"] == "train" and about["role"] == "evaluation" and "tasks" in about and other != name:
            yield from read_lines(out / f"{other}.jsonl")


async def verified(rows: list[dict[str, Any]], *, seconds: float, console: Console) -> list[Verified]:
    """Verifies rows in their order, one per core at a time."""
    places, config = asyncio.Semaphore(os.cpu_count() or 1), GradingConfig(seconds=seconds)
    opened = fresh_workspaces(WorkspaceConfig())
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("  verified", total=len(rows))

        async def one(row: dict[str, Any]) -> Verified:
            async with places:
                found = await verify(row, open_workspace=opened, config=config)
            progress.advance(bar)
            return found

        return await asyncio.gather(*map(one, rows))


def prepare_tasks(
    name: str,
    entry: dict[str, Any],
    out: Path,
    *,
    paths: list[Path],
    table: dict[str, dict[str, Any]],
    repositories: Path | None,
    is_verified: bool,
    console: Console,
) -> dict[str, Any]:
    """Writes NAME.jsonl and returns its entry for the manifest. Raises `PreparationError` if no row is left."""
    found = task_rows(entry, paths, repositories=repositories)
    kept = without_duplicates(found, others=others_of(name, entry, table, out))
    tried = [Verified(instance_id=str(row["instance_id"]), row=row) for row in kept.rows]
    if is_verified:
        tried = asyncio.run(verified(kept.rows, seconds=entry.get("seconds", TASK_SECONDS), console=console))
    rows = [one.row for one in tried if not one.problem]
    if not rows:
        reasons = Counter(one.problem for one in tried).most_common(1)
        raise PreparationError(
            f"{name}: no row is left of {len(found)}, most often because {reasons[0][0] if reasons else 'of none'}"
        )
    write_lines(out / f"{name}.jsonl", rows)
    manifest = {
        "num_read": len(found),
        "num_rows": len(rows),
        "num_duplicates": len(kept.dropped),
        "duplicates": kept.dropped,
        "is_verified": is_verified,
        "excluded": {one.instance_id: one.problem for one in tried if one.problem},
        "tests_left_out": {one.instance_id: one.num_left_out for one in tried if one.num_left_out and not one.problem},
    }
    report(manifest, console)
    return manifest


def report(manifest: dict[str, Any], console: Console) -> None:
    """Prints counts, and the names of rows that were left out."""
    console.print(
        f"  {manifest['num_rows']:,} rows of {manifest['num_read']:,}: {manifest['num_duplicates']:,} duplicates removed, "
        f"{len(manifest['excluded']):,} excluded{'' if manifest['is_verified'] else '; not verified'}"
    )
    for title, named in (("equals", manifest["duplicates"]), ("excluded:", manifest["excluded"])):
        for task, reason in named.items():
            console.print(f"  {task} {title} {json.dumps(reason)[1:-1][:300]}", style="yellow")
