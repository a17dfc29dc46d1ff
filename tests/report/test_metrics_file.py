"""The metrics of a run: written line by line, cut back on resume."""

import math
from pathlib import Path

from vime.files.jsonl import cut_torn_line, read_lines
from vime.report.metrics_file import MetricsWriter, curves, read_metrics


def test_rows_are_read_back_in_order(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.log(1, {"train/loss": 0.5})
    writer.log(2, {"train/loss": math.nan, "train/kl": 1})
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["train/loss"] == 0.5 and math.isnan(rows[1]["train/loss"]) and rows[1]["train/kl"] == 1.0


def test_a_resumed_run_drops_later_steps_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in range(1, 6):
        writer.log(step, {"a": step})
    resumed = MetricsWriter(path)
    resumed.truncate_after(3)
    resumed.log(4, {"a": 40})
    assert [(row["step"], row["a"]) for row in read_metrics(path)] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_a_torn_last_line_is_left_out_and_cut_before_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).log(1, {"a": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "a"')
    assert len(read_metrics(path)) == 1
    MetricsWriter(path).log(2, {"a": 2})
    assert [row["a"] for row in read_metrics(path)] == [1, 2]


def test_a_file_without_any_whole_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"step"')
    assert read_lines(path) == []
    cut_torn_line(path)
    assert path.read_text() == ""


def test_truncating_a_run_without_metrics_does_nothing(tmp_path: Path) -> None:
    MetricsWriter(tmp_path / "metrics.jsonl").truncate_after(0)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_curves_hold_only_the_steps_that_have_the_metric() -> None:
    rows = [{"step": 2, "time": 0.0, "a": 5.0}, {"step": 1, "time": 0.0, "a": 4.0, "b": 1.0}]
    assert curves(rows) == {"a": ([1, 2], [4.0, 5.0]), "b": ([1], [1.0])}
