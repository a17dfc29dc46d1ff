"""A column of a published table, computed from a run: a score, a pooled score, a mean of columns, a metric, a comparison.

A column of `datasets` in results/papers/METHOD.yaml is one of

    null                                              nothing of ours belongs there
    ruler_hqa_7k                                      the score on a data set
    [tau2_airline, tau2_retail]                       the score over all items of several sets
    {mean: [0, 1, 2]}                                 the mean of other columns, by their positions
    {best: aime24}                                    the best run, which is never an average
    {pass_every: 4, of: [tau2_airline, …]}            pass^4, items solved in all of four runs
    {log: dollars_mean, times: 100, of: [hle, …]}     a metric of `eval_log`, over all items of these sets
    {compare: module.function, of: [hle]}             a function of the untrained scaffold's items and the row's, in percent
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from vime.evaluation.conditions import SCAFFOLD
from vime.hooks import load_hook

Cell = dict[str, Any]
Column = str | list[str] | dict[str, Any] | None
Items = list[dict[str, Any]]


@dataclass(kw_only=True, slots=True)
class Measured:
    """Measurements of one row by a run, by data set: scores as in `summary.json`, and the items of all runs.

    `base` holds the untrained scaffold's items; `log` makes the metrics of `eval_log` of items.
    Example: `Measured(scores={"aime24": {"mean": 20.0, "runs": [16.7, 23.3], "num_items": 30, …}})`.
    """

    scores: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    items: Mapping[str, Items] = field(default_factory=dict)
    base: Mapping[str, Items] = field(default_factory=dict)
    log: Callable[[Items], Mapping[str, float]] | None = None


def names_of(column: Column) -> list[str]:
    """The data sets that a column needs; those of a mean of columns belong to these columns."""
    if column is None:
        return []
    if isinstance(column, str):
        return [column]
    if isinstance(column, list):
        return list(column)
    return [column["best"]] if "best" in column else list(column.get("of", []))


def cells(columns: list[Column], measured: Measured, kind: str) -> list[Cell | None]:
    """One cell per column, None where the run lacks a data set; `kind` is strict, lenient, or a metric of items from 0 to 1."""
    found = [None if isinstance(column, dict) and "mean" in column else _cell(column, measured, kind) for column in columns]
    for position, column in enumerate(columns):
        if isinstance(column, dict) and "mean" in column:
            parts = [found[other] for other in column["mean"]]
            whole = [part for part in parts if part is not None]
            if len(whole) == len(parts):
                runs = [fmean(values) for values in zip(*(part["runs"] for part in whole), strict=True)]
                found[position] = _of_runs(runs, sum(part["num_items"] for part in whole))
    return [None if cell is None else {key: value for key, value in cell.items() if key != "runs"} for cell in found]


def _cell(column: Column, measured: Measured, kind: str) -> Cell | None:
    names = names_of(column)
    if not names or any(name not in measured.scores for name in names):
        return None
    if not isinstance(column, dict):
        return _pooled(names, measured, kind)
    if "best" in column:
        return _best(names[0], measured, kind)
    if "pass_every" in column:
        return _pass_every([measured.scores[name] for name in names], str(column["pass_every"]))
    if "log" in column:
        return _metric(names, measured, column["log"], float(column.get("times", 1)))
    return _compared(names, measured, column["compare"])


def _pooled(names: list[str], measured: Measured, kind: str) -> Cell | None:
    """The mean over the items of all sets, run by run."""
    runs = [_runs(name, measured, kind) for name in names]
    if not all(runs):
        return None
    numbers = [measured.scores[name]["num_items"] for name in names]
    if len(names) == 1:
        score = measured.scores[names[0]]
        chosen = {"strict": score, "lenient": score["lenient"]}.get(kind, {})
        rounded = {key: chosen[key] for key in ("mean", "sd") if key in chosen}  # as `summary.json` has them
        return _of_runs(runs[0], numbers[0]) | rounded
    by_set = [[value * number for value in values] for values, number in zip(runs, numbers, strict=True)]
    return _of_runs([sum(values) / sum(numbers) for values in zip(*by_set, strict=True)], sum(numbers))


def _runs(name: str, measured: Measured, kind: str) -> list[float]:
    """The score of each run in percent; none if the items do not have this metric."""
    score = measured.scores[name]
    if kind in ("strict", "lenient"):
        return score["runs"] if kind == "strict" else score["lenient"]["runs"]
    values = [item.get("metrics", {}).get(kind) for item in measured.items.get(name, [])]
    if not values or any(value is None for value in values):
        return []
    number = score["num_items"]
    return [100 * fmean(values[start : start + number]) for start in range(0, len(values), number)]


def _of_runs(runs: list[float], num_items: int) -> Cell:
    deviation = stdev(runs) if len(runs) > 1 else 0.0
    return {"mean": fmean(runs), "sd": deviation, "num_runs": len(runs), "num_items": num_items, "runs": runs}


def _one(value: float, num_runs: int, num_items: int, words: str) -> Cell:
    """A cell without a deviation; `words` describe the number."""
    return {"mean": value, "num_runs": num_runs, "num_items": num_items, "words": words, "runs": [value]}


def _best(name: str, measured: Measured, kind: str) -> Cell | None:
    score, runs = measured.scores[name], _runs(name, measured, kind)
    return _one(max(runs), len(runs), score["num_items"], f"best of {len(runs)} runs") if runs else None


def _pass_every(scores: list[dict[str, Any]], k: str) -> Cell | None:
    if any(k not in score.get("pass_every", {}) for score in scores):
        return None
    total = sum(score["num_items"] for score in scores)
    value = sum(score["pass_every"][k] * score["num_items"] for score in scores) / total
    return _one(value, scores[0]["num_runs"], total, f"{scores[0]['num_runs']} trials")


def _metric(names: list[str], measured: Measured, metric: str, times: float) -> Cell | None:
    items = [item for name in names for item in measured.items.get(name, [])]
    found = measured.log(items) if measured.log is not None and items else {}
    if metric not in found:
        return None
    num_items = sum(measured.scores[name]["num_items"] for name in names)
    return _one(times * found[metric], measured.scores[names[0]]["num_runs"], num_items, "mean")


def _compared(names: list[str], measured: Measured, function: str) -> Cell | None:
    if any(name not in measured.base or name not in measured.items for name in names):
        return None
    base = [item for name in names for item in measured.base[name]]
    ours = [item for name in names for item in measured.items[name]]
    return _one(load_hook(function)(base, ours), measured.scores[names[0]]["num_runs"], len(ours), f"against {SCAFFOLD}")
