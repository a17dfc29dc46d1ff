"""Runs and evaluations against each other: settings that differ, scores, and paired differences with their intervals."""

from contextlib import closing
from dataclasses import asdict
from typing import Any

from vime.report.html import partial_datasets
from vime.report.items import Evaluation, read_evaluation
from vime.report.paired import compare
from vime.report.run_directory import read_config
from vime.report.settings import differences, flatten, sweep_names
from vime.report.summary import IncompleteRunError, read_scores, read_summary
from vime.view.rollout_index import RolloutIndex
from vime.view.runs import Run


def compare_runs(runs: list[Run]) -> dict[str, Any]:
    """Settings in which the runs differ, names for the runs that show them, and the scores of each so far."""
    configs = [read_config(run.path) for run in runs]
    found = differences([flatten(config) for config in configs])
    return {
        "labels": sweep_names([run.name for run in runs], found),
        "runs": [_scores(run, config) for run, config in zip(runs, configs)],
        "differences": found,
    }


def scored(run: Run, config: dict[str, Any], summary: dict[str, Any] | None) -> dict[str, Any]:
    """Scores by data set and row: those of the summary, or of a run that has not finished its complete rows."""
    return summary["datasets"] if summary else partial_datasets(config, read_scores(run.path))


def _scores(run: Run, config: dict[str, Any]) -> dict[str, Any]:
    summary = read_summary(run.path)
    return {
        "name": run.name,
        "state": run.state(),
        "datasets": scored(run, config, summary),
        "num_steps": config["trainer"]["num_steps"],
        "wall_seconds": summary["wall_seconds"] if summary else None,
    }


def paired(first: Run, second: Run) -> list[dict[str, Any]]:
    """Second minus first for each row and data set that both have complete, or why none can be compared."""
    about = {"base": first.name, "run": second.name}
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for row in read_config(first.path)["evaluation"]["rows"]:
        try:
            of_first, of_second = _evaluation(first, rows=[row]).items, _evaluation(second, rows=[row]).items
        except IncompleteRunError as error:
            problems.append(str(error))
            continue
        for key in [key for key in of_first if key in of_second]:
            found.append({**about, "dataset": key[0], "row": row, **_compared(of_first[key], of_second[key])})
    return found or [{**about, "problem": problem} for problem in problems[:1]]


def changed_items(run: Run, *, dataset: str, first: str, second: str) -> dict[str, Any]:
    """Mean score of each item under two rows of one run, those that fell most first, and the difference with its interval.

    A row is named as in the table (`scaffold`, `trained`); `trained:step20` is an evaluation during training.
    """
    index, _ = run.indexed()
    before, after = _means(index, dataset, first), _means(index, dataset, second)
    items = [{"item": item, "first": before[item], "second": after[item]} for item in before if item in after]
    result: dict[str, Any] = {"items": sorted(items, key=lambda item: (item["second"] - item["first"], item["item"]))}
    if ":" not in first + second:
        try:
            found = _evaluation(run, rows=[first, second]).items
            result["paired"] = _compared(found[dataset, first], found[dataset, second])
        except (IncompleteRunError, KeyError) as error:
            result["paired"] = {"problem": str(error)}
    return result


def _evaluation(run: Run, *, rows: list[str]) -> Evaluation:
    """A complete evaluation. Raises FileNotFoundError if one of its files is a link to somewhere else."""
    for path in (run.path / "evaluation").glob("*"):
        run.file(f"evaluation/{path.name}")
    return read_evaluation(run.path, rows=rows)


def _compared(first: list[list[dict[str, Any]]], second: list[list[dict[str, Any]]]) -> dict[str, Any]:
    try:
        found = compare(first, second)
    except IncompleteRunError as error:
        return {"problem": str(error)}
    return {**asdict(found), "is_different": found.is_different}


def _means(index: RolloutIndex, dataset: str, row: str) -> dict[int, float]:
    condition, _, label = row.partition(":")
    sql = """SELECT item, avg(reward) FROM rollouts
        WHERE kind = 'evaluation' AND dataset = ? AND condition = ? AND label = ? GROUP BY item"""
    with closing(index.connection()) as database:
        return dict(database.execute(sql, (dataset, condition, label)).fetchall())
