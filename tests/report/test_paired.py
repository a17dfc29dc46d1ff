"""Two evaluations compared item by item, by hand and on other items."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from tools.compare_evaluations import main
from vime.config import DataConfig, DatasetConfig, EvaluationConfig, RunConfig
from vime.evaluation.protocol import begin, load_prompts, protocol_of
from vime.files.provenance import plain
from vime.report.paired import compare
from vime.report.summary import IncompleteRunError


def run_of(scores: list[float], *, items: str = "x") -> list[dict[str, Any]]:
    return [
        {"index": i, "item": f"{items}{i}", "strict": score, "lenient": 1.0, "failed": False, "temperature": 1.0}
        for i, score in enumerate(scores)
    ]


def test_the_difference_is_of_means_over_runs_and_its_interval_over_items() -> None:
    first = [run_of([0, 0, 1, 0]), run_of([0, 1, 1, 0])]
    second = [run_of([1, 0, 1, 0]), run_of([1, 0, 1, 0])]
    found = compare(first, second)
    assert (found.first, found.second, found.difference) == (37.5, 50.0, 12.5)  # items differ by 1, -0.5, 0, 0
    assert (found.num_items, found.num_better, found.num_worse) == (4, 1, 1)
    assert found.low <= -25 and found.high >= 50 and not found.is_different
    assert compare(first, second) == found, "the bootstrap has a seed"


def test_a_difference_that_every_item_shows_is_sure() -> None:
    found = compare([run_of([0.0] * 20)], [run_of([1.0] * 20)])
    assert (found.low, found.high) == (100.0, 100.0) and found.is_different
    assert compare([run_of([0.0] * 20)], [run_of([0.0] * 20)]).is_different is False


def test_the_interval_is_that_of_the_normal_approximation_for_many_items() -> None:
    found = compare([run_of([0.0] * 400)], [run_of([1.0] * 100 + [0.0] * 300)])
    half_width = 1.96 * 100 * (0.25 * 0.75 / 400) ** 0.5
    assert found.high - found.low == pytest.approx(2 * half_width, rel=0.05)


def test_other_items_are_refused() -> None:
    with pytest.raises(IncompleteRunError, match="3 of 3 items differ"):
        compare([run_of([1, 0, 0])], [run_of([1, 0, 0], items="y")])
    with pytest.raises(IncompleteRunError, match="3 items cannot be compared with 2"):
        compare([run_of([1, 0, 0])], [run_of([1, 0])])


def make_run(folder: Path, rows: dict[str, list[float]]) -> Path:
    source = folder.parent / "rows.jsonl"
    source.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in range(4)))
    config = RunConfig(
        data=DataConfig(evaluation=[DatasetConfig(name="docs", path=str(source))]), evaluation=EvaluationConfig(num_runs=1)
    )
    begin(folder / "evaluation", protocol_of(config, load_prompts(config)))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    for row, scores in rows.items():
        text = "".join(json.dumps(item) + "\n" for item in run_of(scores))
        (folder / "evaluation" / f"docs-{row}-t1-run0.jsonl").write_text(text)
    return folder


def test_the_tool_compares_rows_and_refuses_what_is_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", {"scaffold": [0, 0, 1, 0], "trained": [1, 1, 1, 1], "single_turn": [1, 1, 1]})
    console = Console(record=True, width=200)
    main([f"{run}:scaffold", f"{run}:trained", "--json", str(tmp_path / "c.json")], console)
    text = console.export_text()
    assert "+75.0" in text and "lenient" in text and "holds 0" in text
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [(row["score"], row["difference"]) for row in rows] == [("strict", 75.0), ("lenient", 0.0)]
    with pytest.raises(SystemExit):
        main([f"{run}:scaffold", f"{run}:single_turn"], console)
    assert "docs, single_turn, run 0 is incomplete: 3 of 4 items, without 3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(run), f"{run}:trained"], console)
    assert "names no row" in capsys.readouterr().err
