"""Columns of a table computed from a run: pooled sets, means of columns, the best run, pass^k, metrics, comparisons."""

from dataclasses import replace
from typing import Any

import pytest

from vime.report.columns import Measured, cells, names_of
from vime.report.summary import RunScore, summarize_runs


def score(*runs: list[float]) -> dict[str, Any]:
    numbers = [
        RunScore(
            dataset="d", row="trained", run=i, temperature=0.0, num_items=len(strict), strict=strict, lenient=[1.0] * len(strict)
        )
        for i, strict in enumerate(runs)
    ]
    return summarize_runs(numbers, pass_at=[1, 2])


SMALL, LARGE = score([1.0], [0.0]), score([0.0, 0.0, 1.0], [0.0, 0.0, 1.0])
ITEMS = [{"dollars": 1.0}, {"dollars": 3.0}, {"dollars": 0.0}]


def total_of(base: list[dict[str, Any]], items: list[dict[str, Any]]) -> float:
    return 100.0 * sum(item["dollars"] for item in items) / sum(item["dollars"] for item in base)


def measured() -> Measured:
    return Measured(
        scores={"small": SMALL, "large": LARGE},
        items={"small": ITEMS[:1], "large": ITEMS[1:]},
        base={"small": [{"dollars": 2.0}]},
        log=lambda items: {"dollars_mean": sum(item["dollars"] for item in items) / len(items)},
    )


def test_several_sets_are_pooled_by_their_items_and_not_by_their_means():
    one, both = cells(["small", ["small", "large"]], measured(), "strict")
    assert one and both
    assert (one["mean"], one["num_items"]) == (50.0, 1)
    assert (both["mean"], both["num_items"], both["num_runs"]) == (pytest.approx((50 + 25) / 2, abs=1e-3), 4, 2)
    assert both["sd"] == pytest.approx(25 / 2**0.5, abs=1e-3)


def test_a_mean_of_columns_is_missing_where_one_of_them_is():
    mean, _, _ = cells([{"mean": [1, 2]}, "small", "large"], measured(), "strict")
    assert mean and mean["mean"] == pytest.approx((50 + 100 / 3) / 2, abs=1e-3) and "runs" not in mean
    assert cells([{"mean": [1, 2]}, "small", "absent"], measured(), "strict")[0] is None
    assert cells([None, ["small", "absent"]], measured(), "strict") == [None, None]


def test_a_best_run_pass_k_and_a_metric_say_what_they_are():
    best, pass_1, pass_2, cents = cells(
        [
            {"best": "small"},
            {"pass_every": 1, "of": ["small", "large"]},
            {"pass_every": 2, "of": ["small", "large"]},
            {"log": "dollars_mean", "times": 100, "of": ["small", "large"]},
        ],
        measured(),
        "strict",
    )
    assert best and pass_1 and pass_2 and cents
    assert (best["mean"], best["words"]) == (100.0, "best of 2 runs") and "sd" not in best
    assert pass_1["mean"] == pytest.approx((50 + 100) / 4, abs=1e-3) and pass_2["mean"] == pytest.approx(100 / 4, abs=1e-3)
    assert cents["mean"] == pytest.approx(100 * 4 / 3)
    assert cells([{"pass_every": 4, "of": ["small"]}, {"log": "unknown", "of": ["small"]}], measured(), "strict") == [None, None]


def test_a_comparison_needs_the_untrained_scaffold_on_the_same_items():
    column = {"compare": f"{__name__}.total_of", "of": ["small"]}
    (cell,) = cells([column], measured(), "strict")
    assert cell and cell["mean"] == 50.0
    assert cells([{**column, "of": ["large"]}], measured(), "strict") == [None]


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (None, []),
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ({"mean": [0]}, []),
        ({"best": "a"}, ["a"]),
        ({"log": "x", "of": ["a"]}, ["a"]),
    ],
)
def test_the_sets_that_a_column_needs(column: Any, names: list[str]):
    assert names_of(column) == names


def test_a_row_may_have_another_score_of_its_items():
    items = [{"metrics": {"f1": value}} for value in (0.5, 0.0, 1.0, 1.0, 0.5, 0.0)]
    found = cells(["large", "small"], replace(measured(), items={"large": items, "small": [{"metrics": {}}]}), "f1")
    assert found[0] and found[0]["mean"] == pytest.approx(50.0) and found[0]["num_runs"] == 2 and found[1] is None
