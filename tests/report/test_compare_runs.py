"""Runs side by side, from their folders or from a sweep's."""

import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from rich.console import Console

from vime.config import RunConfig
from vime.files.provenance import plain
from vime.report.metrics_file import MetricsWriter
from vime.report.summary import RunScore, summarize_runs


@pytest.fixture(scope="module")
def compare_runs() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "compare_runs.py"
    spec = importlib.util.spec_from_file_location("compare_runs", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_run(path: Path, *, lr: float, finished: bool) -> Path:
    config = RunConfig(name="demo", output_dir=str(path))
    config.trainer.lr = lr
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    writer = MetricsWriter(path / "metrics.jsonl")
    for step in range(1, 9):
        writer.log(step, {"reward/mean": step * lr})
    if finished:
        score = RunScore(dataset="docs", row="trained", run=0, temperature=1.0, num_items=2, strict=[1, 0], lenient=[1, 1])
        summary = {
            "datasets": {"docs": {"trained": summarize_runs([score])}},
            "wall_seconds": 65.0,
            "first_step_seconds": None,
            "num_rollouts": 64,
            "num_failed_rollouts": 2,
            "finished": "2026-01-01 10:00 UTC",
            "machine": {
                **{"matmul_gflops_float32": 310.0, "processor": "CPU", "num_usable_cores": 2, "memory_gib": 8.0},
                "load_average": [1.0, 1.0, 1.0],
            },
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def compare(module: ModuleType, *arguments: object) -> str:
    output = io.StringIO()
    module.main([str(argument) for argument in arguments], Console(file=output, width=140, highlight=False))
    return output.getvalue()


def test_runs_are_compared_by_settings_scores_and_curves(compare_runs: ModuleType, tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", lr=0.1, finished=True)
    two = make_run(tmp_path / "two", lr=0.05, finished=False)
    text = compare(compare_runs, one, two, "--html", tmp_path / "page.html", "--markdown", tmp_path / "two.md", "--title", "Two")
    for expected in ("trainer.lr", "0.05", "50.0 (100.0)", "1m05s", "unfinished", "reward/mean", "▁", "█"):
        assert expected in text
    assert "output_dir" not in text and "adam_beta1" not in text
    page = (tmp_path / "page.html").read_text()
    assert "trainer.lr" in page and "<svg" in page and "50.0 (100.0)" in page
    tables = (tmp_path / "two.md").read_text()
    assert tables.startswith("# Two\n") and "| trainer.lr | 0.1 | 0.05 |" in tables and "## reward/mean by step" in tables


def test_a_sweep_stands_for_its_runs_in_their_order(compare_runs: ModuleType, tmp_path: Path) -> None:
    for number in (0, 2, 10):
        make_run(tmp_path / "sweep" / str(number), lr=0.1, finished=False)
    (tmp_path / "sweep" / "multirun.yaml").write_text("")
    assert [path.name for path in compare_runs.find_runs([tmp_path / "sweep"])] == ["0", "2", "10"]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_that_is_no_run_is_named(
    compare_runs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as stopped:
        compare(compare_runs, tmp_path / name)
    assert stopped.value.code == 2
    assert str(tmp_path / name) in capsys.readouterr().err


def test_runs_of_the_same_name_are_told_apart(compare_runs: ModuleType, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / parent / "0", lr=0.1, finished=False) for parent in ("a", "b")]
    assert "a/0" in compare(compare_runs, *paths)


def test_a_sparkline_spans_its_scale_and_leaves_gaps(compare_runs: ModuleType) -> None:
    assert compare_runs.sparkline([0.0, float("nan"), 1.0], 0.0, 1.0, 8) == "▁ █"
    assert len(compare_runs.sparkline([float(i) for i in range(1000)], 0.0, 999.0, 16)) == 16
    assert compare_runs.sparkline([], 0.0, 1.0, 16) == ""
