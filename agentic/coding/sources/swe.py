"""Rows of SWE-bench, SWE-Gym, SWE-smith and R2E-Gym, from JSON lines or Parquet files, with local clones of their repositories.

| data set | repository | commit | patch | tests |
|---|---|---|---|---|
| SWE-bench, SWE-Gym | `repo` | `base_commit` | `patch` | `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS` |
| SWE-smith | `repo` | branch `instance_id`, else the newest | `patch` plants the bug | those of the repository |
| R2E-Gym | `repo_name` | `old_commit_hash` | `file_diffs` | `test_file_names`, `test_file_codes` |
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentic.coding.patch import patch_between, reverse
from agentic.coding.protected import is_protected

KEPT = ("instance_id", "problem_statement", "base_commit", "patch", "test_patch", "version")
R2E_TESTS = "r2e_tests"


def rows(found: Iterable[dict[str, Any]], *, repositories: Path) -> Iterator[dict[str, Any]]:
    """The rows of a data set, each with the path of its repository's clone, `repositories/OWNER__NAME` or `repositories/NAME`."""
    for row in found:
        if "parsed_commit_content" in row:
            yield of_r2e_gym(row, repositories)
        elif "test_patch" in row or "tests" in row:
            yield of_swe_bench(row, repositories)
        else:
            yield of_swe_smith(row, repositories)


def of_swe_bench(row: dict[str, Any], repositories: Path) -> dict[str, Any]:
    """A row of SWE-bench or SWE-Gym."""
    kept = {name: row[name] for name in (*KEPT, "tests") if row.get(name) is not None}
    return {**kept, **_lists(row), "repo": str(clone_of(str(row["repo"]), repositories))}


def of_swe_smith(row: dict[str, Any], repositories: Path) -> dict[str, Any]:
    """A row of SWE-smith. Its patch plants the bug into `base_commit` and is planted before the agent starts."""
    kept = {name: row[name] for name in KEPT if row.get(name) is not None}
    solution = {"patch": reverse(row["patch"]), "bug_patch": row["patch"]}
    return {**kept, **_lists(row), **solution, "repo": str(clone_of(str(row["repo"]), repositories))}


def of_r2e_gym(row: dict[str, Any], repositories: Path) -> dict[str, Any]:
    """A row of R2E-Gym; its patch is built from the contents of files that the commit changed, without its tests."""
    commit, executed = json.loads(row["parsed_commit_content"]), json.loads(row["execution_result_content"])
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for change in commit["file_diffs"]:
        path = change["header"]["file"]["path"]
        if is_protected(path, is_new=False):
            continue
        before |= {path: text} if (text := change.get("old_file_content")) else {}
        after |= {path: text} if (text := change.get("new_file_content")) else {}
    tests = zip(executed["test_file_names"], executed["test_file_codes"], strict=True)
    return {
        "instance_id": f"{row['repo_name']}__{row['commit_hash'][:12]}",
        "problem_statement": row["problem_statement"],
        "repo": str(clone_of(row["repo_name"], repositories)),
        "base_commit": commit["old_commit_hash"],
        "patch": patch_between(before, after),
        "tests": {name if "/" in name else f"{R2E_TESTS}/{name}": code for name, code in tests},
    }


def clone_of(name: str, repositories: Path) -> Path:
    """The folder of a repository's clone; that of the whole name if there is none."""
    tried = [repositories / name.replace("/", "__"), repositories / name.rpartition("/")[2], repositories / name]
    return next((folder for folder in tried if folder.is_dir()), tried[0]).absolute()


def _lists(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: row.get(name, row.get(name.upper())) for name in ("fail_to_pass", "pass_to_pass")}
    return {
        name: json.loads(value) if isinstance(value, str) else list(value) for name, value in found.items() if value is not None
    }
