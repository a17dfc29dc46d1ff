"""The table of a run in numbers: arithmetic by hand, incomplete runs refused by name."""

import json
from pathlib import Path

import pytest

from vime.config import DatasetConfig, RunConfig
from vime.report import summary as summary_module
from vime.report.summary import (
    IncompleteRunError,
    RunScore,
    append_scores,
    build_summary,
    read_scores,
    read_summary,
    write_summary,
)

TOTALS = {"wall_seconds": 10.0, "first_step_seconds": None, "num_steps": 2, "num_rollouts": 8, "num_failed_rollouts": 1}


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "describe_machine", lambda: {"num_cores": 2})


def make_config(num_runs: int = 2, datasets: tuple[str, ...] = ("docs",)) -> RunConfig:
    config = RunConfig(name="demo")
    config.data.evaluation = [DatasetConfig(name=name) for name in datasets]
    config.evaluation.num_runs = num_runs
    return config


def score(run: int, strict: list[float], *, row: str = "scaffold", temperature: float = 1.0, dataset: str = "docs") -> RunScore:
    lenient = [1.0] * len(strict)
    return RunScore(
        dataset=dataset, row=row, run=run, temperature=temperature, num_items=len(strict), strict=strict, lenient=lenient
    )


def test_mean_and_deviation_are_over_runs_and_the_error_over_items() -> None:
    summary = build_summary(make_config(), [score(1, [1, 1, 1, 0]), score(0, [1, 0, 0, 0])], **TOTALS)
    row = summary["datasets"]["docs"]["scaffold"]
    assert row["runs"] == [25.0, 75.0], "in the order of runs"
    assert row["mean"] == 50.0
    assert row["sd"] == pytest.approx(35.3553, abs=1e-4)  # sqrt((25² + 25²) / 1)
    # items over runs: 1, 0.5, 0.5, 0; sd = sqrt(0.5 / 3) = 0.408248; / sqrt(4) = 0.204124
    assert row["standard_error"] == pytest.approx(20.4124, abs=1e-4)
    assert (row["num_runs"], row["num_items"]) == (2, 4)
    assert row["lenient"] == {"mean": 100.0, "sd": 0.0, "runs": [100.0, 100.0], "best_of_runs": 100.0}
    assert row["best_of_runs"] == 75.0
    assert summary["num_failed_rollouts"] == 1 and summary["name"] == "demo" and summary["first_step_seconds"] is None


def test_one_run_has_no_deviation() -> None:
    row = build_summary(make_config(1), [score(0, [1, 0])], **TOTALS)["datasets"]["docs"]["scaffold"]
    assert (row["mean"], row["sd"], row["num_runs"]) == (50.0, 0.0, 1)


def test_rows_that_nobody_ran_are_absent() -> None:
    assert set(build_summary(make_config(1), [score(0, [1])], **TOTALS)["datasets"]["docs"]) == {"scaffold"}
    assert build_summary(make_config(1), [], **TOTALS)["datasets"] == {}


def test_other_temperatures_stand_beside_the_table() -> None:
    config = make_config(1)
    config.evaluation.extra_temperatures = [0.0]
    summary = build_summary(config, [score(0, [1, 0]), score(0, [1, 1], temperature=0.0)], **TOTALS)
    assert summary["untrained_temperatures"] == {"docs": {"0.0": 100.0}}
    assert summary["datasets"]["docs"]["scaffold"]["mean"] == 50.0


def test_an_extra_temperature_equal_to_the_table_s_does_not_enter_its_mean() -> None:
    config = make_config(1)
    config.evaluation.extra_temperatures = [1.0]
    summary = build_summary(config, [score(0, [1, 0]), score(0, [1, 1])], **TOTALS)
    assert summary["untrained_temperatures"] == {"docs": {"1.0": 100.0}}
    assert summary["datasets"]["docs"]["scaffold"]["runs"] == [50.0]


def test_a_missing_run_is_refused_by_name() -> None:
    with pytest.raises(IncompleteRunError, match=r"docs, scaffold: runs \[1\] of 2"):
        build_summary(make_config(), [score(0, [1, 0])], **TOTALS)


def test_a_row_that_lacks_a_data_set_is_refused_by_name() -> None:
    with pytest.raises(IncompleteRunError, match="other, scaffold"):
        build_summary(make_config(1, ("docs", "other")), [score(0, [1, 0])], **TOTALS)


def test_a_run_with_fewer_items_than_another_is_refused_by_name() -> None:
    with pytest.raises(IncompleteRunError, match=r"docs, scaffold, run 1 .*3 items where others have 4"):
        build_summary(make_config(), [score(0, [1, 0, 1, 0]), score(1, [1, 0, 1])], **TOTALS)


def test_scores_that_do_not_cover_the_items_are_refused_by_name() -> None:
    short = RunScore(dataset="docs", row="trained", run=0, temperature=1.0, num_items=3, strict=[1.0, 0.0], lenient=[1.0, 0.0])
    with pytest.raises(IncompleteRunError, match=r"docs, trained, run 0 .*2 strict and 2 lenient scores for 3 items"):
        build_summary(make_config(1), [short], **TOTALS)


def test_a_run_scored_twice_is_refused() -> None:
    with pytest.raises(IncompleteRunError, match="scored twice"):
        build_summary(make_config(1), [score(0, [1], row="trained"), score(0, [0], row="trained")], **TOTALS)


def test_a_summary_is_written_and_read_back(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    summary = build_summary(make_config(1), [score(0, [1, 0])], **TOTALS)
    assert json.loads(write_summary(tmp_path, summary).read_text()) == summary == read_summary(tmp_path)


def test_kept_scores_come_back_once_each(tmp_path: Path) -> None:
    append_scores(tmp_path, [score(0, [1, 0]), score(1, [0, 0])])
    append_scores(tmp_path, [score(0, [1, 1])])
    assert read_scores(tmp_path) == [score(0, [1, 1]), score(1, [0, 0])]


@pytest.mark.parametrize(
    ("num_runs", "num_solved", "k", "at_least_once", "every_time"),
    [
        (3, 0, 1, 0.0, 0.0),
        (3, 1, 1, 1 / 3, 1 / 3),
        (3, 1, 2, 2 / 3, 0.0),
        (3, 2, 2, 1.0, 1 / 3),
        (4, 2, 3, 1.0, 0.0),
        (4, 2, 2, 5 / 6, 1 / 6),
        (5, 5, 5, 1.0, 1.0),
    ],
)
def test_pass_at_k_and_pass_every_k_by_hand(num_runs: int, num_solved: int, k: int, at_least_once: float, every_time: float):
    assert summary_module.pass_at_least_once(num_runs, num_solved, k) == pytest.approx(at_least_once)
    assert summary_module.pass_every_time(num_runs, num_solved, k) == pytest.approx(every_time)


def test_the_summary_has_pass_at_k_where_asked_and_says_how_many_items_failed() -> None:
    config = make_config(2)
    config.evaluation.pass_at = [1, 2]
    runs = [score(0, [1, 1, 0.5, 0]), score(1, [1, 0, 1, 0])]
    runs[1] = RunScore(**{**{name: getattr(runs[1], name) for name in runs[1].__dataclass_fields__}, "num_failed": 1})
    row = build_summary(config, runs, **TOTALS)["datasets"]["docs"]["scaffold"]
    assert row["pass_at"] == {"1": 50.0, "2": 75.0} and row["pass_every"] == {"1": 50.0, "2": 25.0}
    assert row["num_failed"] == 1


def test_baselines_stand_in_the_table_after_the_usual_rows() -> None:
    scores = [score(0, [1, 0], row="scaffold@gpt"), score(0, [1, 1])]
    rows = build_summary(make_config(1), scores, **TOTALS)["datasets"]["docs"]
    assert list(rows) == ["scaffold", "scaffold@gpt"] and rows["scaffold@gpt"]["mean"] == 50.0
