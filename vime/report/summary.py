"""`summary.json`: the table of a run in numbers, the same for every method.

Scores are 0 to 100; mean and standard deviation are over complete runs of the evaluation, the standard error over items.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vime.config import RunConfig
from vime.errors import VimeError
from vime.evaluation.conditions import LABELS
from vime.files.jsonl import append_line, read_lines, write_text
from vime.report.machine_description import describe_machine

SUMMARY = "summary.json"
SCORES = "scores.jsonl"
DIGITS = 4
SOLVED = 1.0
"""The strict score of an item that counts as solved in pass@k and pass^k."""


class IncompleteRunError(VimeError, ValueError):
    """An evaluation lacks runs or items, so its mean would not be comparable; the message names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunScore:
    """One run of one row over one data set: scores per item, 0 to 1, in the data set's order; failed items score 0.

    Example: `RunScore(dataset="docs_24", row="scaffold", run=0, temperature=1.0, num_items=2, strict=[1, 0], lenient=[1, 1])`.
    """

    dataset: str
    row: str
    run: int
    temperature: float
    num_items: int
    strict: list[float]
    lenient: list[float]
    num_failed: int = 0
    """Items that the infrastructure failed; they score 0."""


def build_summary(
    config: RunConfig,
    scores: list[RunScore],
    *,
    wall_seconds: float,
    first_step_seconds: float | None,
    num_steps: int,
    num_rollouts: int,
    num_failed_rollouts: int,
) -> dict[str, Any]:
    """Aggregates an evaluation; rows that were not run at all are absent.

    Raises `IncompleteRunError` if a row lacks runs or data sets, or a run lacks items.
    """
    runs, temperatures = _sort_scores(config, scores)
    return {
        "metric": "strict score in percent (mean over runs)",
        "name": config.name,
        "mode": config.mode.name,
        "method": config.method.name,
        "model": config.model.name,
        "seed": config.seed,
        "checkpoint": config.model.checkpoint,
        "evaluation": {
            "num_runs": config.evaluation.num_runs,
            "temperature": config.evaluation.temperature,
            "top_p": config.evaluation.top_p,
        },
        "datasets": aggregate(config, runs),
        "untrained_temperatures": temperatures,
        "wall_seconds": round(wall_seconds, 3),
        "first_step_seconds": None if first_step_seconds is None else round(first_step_seconds, 3),
        "num_steps": num_steps,
        "num_rollouts": num_rollouts,
        "num_failed_rollouts": num_failed_rollouts,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }


def aggregate(config: RunConfig, runs: dict[tuple[str, str], list[RunScore]]) -> dict[str, dict[str, Any]]:
    """{data set: {row: mean, sd, runs, items …}} of complete runs, keyed by (data set, row)."""
    datasets = [dataset.name for dataset in config.data.evaluation] or sorted({dataset for dataset, _ in runs})
    found = dict.fromkeys(row for _, row in runs)
    measured = [*(row for row in LABELS if row in found), *(row for row in found if row not in LABELS)]
    for dataset in datasets:
        _check_complete(config, dataset, {row: runs.get((dataset, row), []) for row in measured})
    ks = config.evaluation.pass_at
    return {dataset: {row: summarize_runs(runs[dataset, row], ks) for row in measured} for dataset in datasets if measured}


def write_summary(path: Path, summary: dict[str, Any]) -> Path:
    """Writes `summary.json` into the run folder `path`."""
    file = path / SUMMARY
    write_text(file, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    return file


def read_summary(path: Path) -> dict[str, Any] | None:
    """Returns the summary of the run in folder `path`, or None if the run has not finished."""
    file = path / SUMMARY
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def append_scores(path: Path, scores: list[RunScore]) -> None:
    """Keeps finished runs in `scores.jsonl` of the run folder `path`, for a resumed run and for the report on the way."""
    for score in scores:
        append_line(path / SCORES, asdict(score))


def read_scores(path: Path) -> list[RunScore]:
    """Scores that `append_scores` kept; the last score of runs that were scored again."""
    rows = [RunScore(**row) for row in read_lines(path / SCORES)]
    return list({(s.dataset, s.row, s.run, s.temperature): s for s in rows}.values())


def _sort_scores(
    config: RunConfig, scores: list[RunScore]
) -> tuple[dict[tuple[str, str], list[RunScore]], dict[str, dict[str, float]]]:
    """Scores of the table, and the untrained scaffold at other temperatures as {data set: {"0.0": percent}}."""
    runs: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    temperatures: dict[str, dict[str, float]] = defaultdict(dict)
    for score in scores:
        _check_items(score)
        known = {earlier.run for earlier in runs[score.dataset, score.row]}
        if score.temperature == config.evaluation.temperature and score.run not in known:
            runs[score.dataset, score.row].append(score)
        elif score.row == "scaffold" and score.temperature in config.evaluation.extra_temperatures:
            temperatures[score.dataset][str(float(score.temperature))] = _percent(fmean(score.strict))
        else:
            raise IncompleteRunError(f"{_name(score)}: scored twice, or at a temperature that nobody asked for")
    return {key: sorted(found, key=lambda s: s.run) for key, found in runs.items() if found}, dict(temperatures)


def _check_items(score: RunScore) -> None:
    if score.num_items < 1 or {len(score.strict), len(score.lenient)} != {score.num_items}:
        counts = f"{len(score.strict)} strict and {len(score.lenient)} lenient scores for {score.num_items} items"
        raise IncompleteRunError(f"{_name(score)} is incomplete: {counts}")


def _check_complete(config: RunConfig, dataset: str, rows: dict[str, list[RunScore]]) -> None:
    expected = set(range(config.evaluation.num_runs))
    for row, runs in rows.items():
        missing = expected - {score.run for score in runs}
        if missing:
            raise IncompleteRunError(f"{dataset}, {row}: runs {sorted(missing)} of {len(expected)} are missing")
    numbers = {f"{_name(score)}": score.num_items for runs in rows.values() for score in runs}
    if len(set(numbers.values())) > 1:
        short = min(numbers, key=lambda name: numbers[name])
        raise IncompleteRunError(f"{short} is incomplete: {numbers[short]} items where others have {max(numbers.values())}")


def summarize_runs(runs: list[RunScore], pass_at: Sequence[int] = ()) -> dict[str, Any]:
    """Mean, standard deviation and runs of one row on one data set, in percent; all runs have the same items.

    `best_of_runs` is never the score of a table. With `pass_at` there are also the shares of items that k runs solve at least
    once (pass@k) and every time (pass^k), both without bias for k below the number of runs.
    """
    strict = [fmean(score.strict) for score in runs]
    lenient = [fmean(score.lenient) for score in runs]
    per_item = list(zip(*[score.strict for score in runs], strict=True))
    items = [fmean(values) for values in per_item]
    solved = [sum(value >= SOLVED for value in values) for values in per_item]
    row: dict[str, Any] = {
        "mean": _percent(fmean(strict)),
        "sd": _percent(_sd(strict)),
        "num_runs": len(runs),
        "num_items": runs[0].num_items,
        "num_failed": sum(score.num_failed for score in runs),
        "standard_error": _percent(_sd(items) / len(items) ** 0.5),
        "runs": [_percent(value) for value in strict],
        "best_of_runs": _percent(max(strict)),
        "lenient": {
            "mean": _percent(fmean(lenient)),
            "sd": _percent(_sd(lenient)),
            "runs": [_percent(value) for value in lenient],
            "best_of_runs": _percent(max(lenient)),
        },
    }
    for k in pass_at:
        row.setdefault("pass_at", {})[str(k)] = _percent(fmean(pass_at_least_once(len(runs), c, k) for c in solved))
        row.setdefault("pass_every", {})[str(k)] = _percent(fmean(pass_every_time(len(runs), c, k) for c in solved))
    return row


def pass_at_least_once(num_runs: int, num_solved: int, k: int) -> float:
    """pass@k of one item: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, equation 1)."""
    return 1.0 - comb(num_runs - num_solved, k) / comb(num_runs, k)


def pass_every_time(num_runs: int, num_solved: int, k: int) -> float:
    """pass^k of one item: C(c, k) / C(n, k) (arXiv 2406.12045, section 3)."""
    return comb(num_solved, k) / comb(num_runs, k)


def _sd(values: list[float]) -> float:
    """Sample standard deviation; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def _percent(share: float) -> float:
    return round(100 * share, DIGITS)


def _name(score: RunScore) -> str:
    return f"{score.dataset}, {score.row}, run {score.run} at temperature {score.temperature:g}"
