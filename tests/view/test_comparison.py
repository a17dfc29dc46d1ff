"""Runs are compared over the same items, with what is complete, and what cannot be compared says why."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.report.test_html import make_run, scores
from tests.view.test_rollout_index import append
from vime.report.paired import compare
from vime.report.summary import append_scores
from vime.view.comparison import changed_items, compare_runs, paired
from vime.view.runs import Run, Runs

SCORES = {"scaffold": [[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]], "trained": [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]}


def items(row: str, run: int, scores: list[float]) -> list[dict[str, Any]]:
    about = {
        "row": row,
        "run": run,
        "evaluation": "",
        "temperature": 1.0,
        "version": 3,
        "failed": False,
        "label": [],
        "error": "",
    }
    about |= {"dataset": "docs", "stop_reason": "answered", "lenient": 0.0, "samples": [{"response": "", "metadata": {}}]}
    return [{**about, "index": n, "item": f"digest {n}", "strict": score} for n, score in enumerate(scores)]


def run_of(path: Path, scores: dict[str, list[list[float]]], **settings: Any) -> None:
    """A run with these evaluations, and these settings of its trainer."""
    directory = make_run(path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["trainer"] |= settings
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (directory.evaluation / "protocol.yaml").write_text(yaml.safe_dump({"datasets": {"docs": {"num_items": 3}}}))
    for row, of_runs in scores.items():
        for number, of_run in enumerate(of_runs):
            append(directory.evaluation / f"docs-{row}-t1-run{number}.jsonl", items(row, number, of_run))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_of(tmp_path / "outputs" / "a", SCORES)
    run_of(tmp_path / "outputs" / "b", {"scaffold": SCORES["trained"], "trained": SCORES["trained"][:1]}, lr=0.25)
    run_of(tmp_path / "outputs" / "c", {})
    return {run.name: run for run in Runs([tmp_path / "outputs"]).all()}


def test_rows_that_both_runs_have_complete_are_compared(runs: dict[str, Run]):
    found = compare_runs([runs["a"], runs["b"]])
    (pair,) = paired(runs["a"], runs["b"])
    wanted = compare([items("", 0, s) for s in SCORES["scaffold"]], [items("", 0, s) for s in SCORES["trained"]])
    assert (pair["base"], pair["run"], pair["row"], pair["dataset"]) == ("a", "b", "scaffold", "docs")
    assert [pair[key] for key in ("difference", "low", "high")] == [wanted.difference, wanted.low, wanted.high]
    assert list(found["differences"].values()) == [[found["differences"]["trainer.lr"][0], "0.25"]]
    assert found["labels"] == ["a", "b"]


def test_what_a_run_in_progress_has_scored_is_compared_as_well(runs: dict[str, Run]):
    append_scores(runs["b"].path, [scores("scaffold", 0, [1.0, 0.0, 0.0])])
    _, of_second = compare_runs([runs["a"], runs["b"]])["runs"]
    assert of_second["datasets"]["docs_24"]["scaffold"] == {"num_done": 1, "num_runs": 2, "num_items": 3}
    append_scores(runs["b"].path, [scores("scaffold", 1, [0.0, 0.0, 0.0])])
    _, of_second = compare_runs([runs["a"], runs["b"]])["runs"]
    assert of_second["datasets"]["docs_24"]["scaffold"]["mean"] == pytest.approx(100 / 6, abs=1e-3)


def test_a_run_without_a_complete_row_says_what_it_lacks(runs: dict[str, Run]):
    (pair,) = paired(runs["a"], runs["c"])
    assert "not begun" in pair["problem"]


def test_items_that_fell_most_stand_first(runs: dict[str, Run]):
    found = changed_items(runs["a"], dataset="docs", first="scaffold", second="trained")
    assert found["items"] == [
        {"item": 2, "first": 0.5, "second": 0.0},
        {"item": 1, "first": 1.0, "second": 1.0},
        {"item": 0, "first": 0.0, "second": 1.0},
    ]
    assert found["paired"]["num_better"] == 1 and found["paired"]["num_worse"] == 1
    assert "incomplete" in changed_items(runs["b"], dataset="docs", first="scaffold", second="trained")["paired"]["problem"]
    assert changed_items(runs["a"], dataset="nowhere", first="scaffold", second="trained")["items"] == []
