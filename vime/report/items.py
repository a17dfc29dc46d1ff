"""Reads evaluations back from their items; an incomplete one is refused with its name.

An evaluation is complete if every row, run and data set that its configuration asks for has every item exactly once.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.evaluation.conditions import SCAFFOLD, TRAINED, Job
from vime.evaluation.protocol import PROTOCOL, read_protocol
from vime.files.jsonl import read_lines
from vime.report.run_directory import RunDirectory, read_config
from vime.report.summary import IncompleteRunError, RunScore

SHOWN_MISSING = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A complete evaluation.

    `items` are by data set and row: one list per run, in the data set's order.
    Example: `Evaluation(config={…}, protocol={…}, items={("docs_20", "scaffold"): [[{"index": 0, "strict": 1.0, …}, …], …]})`.
    """

    config: dict[str, Any]
    protocol: dict[str, Any]
    items: dict[tuple[str, str], list[list[dict[str, Any]]]]

    def scores(self) -> list[RunScore]:
        """The scores of every run."""
        return [
            score_of(items, dataset=dataset, row=row, run=run)
            for (dataset, row), runs in self.items.items()
            for run, items in enumerate(runs)
        ]


def score_of(items: list[dict[str, Any]], *, dataset: str, row: str, run: int) -> RunScore:
    """The scores of one run."""
    return RunScore(
        dataset=dataset,
        row=row,
        run=run,
        temperature=items[0]["temperature"],
        num_items=len(items),
        strict=[item["strict"] for item in items],
        lenient=[item["lenient"] for item in items],
        num_failed=sum(item["failed"] for item in items),
    )


def read_evaluation(run_path: Path, *, rows: list[str] | None = None) -> Evaluation:
    """Reads the evaluation in a run folder; `rows` must be complete, by default all rows of the run's configuration.

    Raises `IncompleteRunError`, naming data set, row, run and items, if anything is missing or there twice;
    `FileNotFoundError` if the folder holds no run.
    """
    config = read_config(run_path)
    folder = RunDirectory(run_path).evaluation
    protocol = read_protocol(folder)
    if protocol is None:
        raise IncompleteRunError(f"{run_path}: no evaluation was begun (there is no {folder.name}/{PROTOCOL})")
    settings = config["evaluation"]
    wanted = _rows(config) if rows is None else rows
    items: dict[tuple[str, str], list[list[dict[str, Any]]]] = defaultdict(list)
    for dataset, about in protocol["datasets"].items():
        for row in wanted:
            for run in range(settings["num_runs"]):
                where = f"{run_path}: {dataset}, {row}, run {run}"
                job = Job(dataset=dataset, row=row, run=run, temperature=settings["temperature"])
                items[dataset, row].append(_whole(folder / job.file_name, about["num_items"], where))
    return Evaluation(config=config, protocol=protocol, items=dict(items))


def _rows(config: dict[str, Any]) -> list[str]:
    """Like `vime.evaluation.conditions.rows_of`, for a configuration that was read from a file."""
    rows = config["evaluation"]["rows"]
    return [row for row in rows if row != TRAINED] if config["mode"] == "eval" and SCAFFOLD in rows else rows


def _whole(path: Path, num_items: int, where: str) -> list[dict[str, Any]]:
    """The items of a file in order, each exactly once."""
    if not path.exists():
        raise IncompleteRunError(f"{where} is incomplete: it was not begun ({num_items} items)")
    items = read_lines(path)
    counts = Counter(item["index"] for item in items)
    twice = sorted(index for index, count in counts.items() if count > 1)
    missing = [index for index in range(num_items) if index not in counts]
    if twice:
        raise IncompleteRunError(f"{where} holds items {_shown(twice)} more than once")
    if missing:
        raise IncompleteRunError(f"{where} is incomplete: {len(items)} of {num_items} items, without {_shown(missing)}")
    if len(items) > num_items:
        strangers = sorted(index for index in counts if index >= num_items)
        raise IncompleteRunError(f"{where} holds items that the data set has not: {_shown(strangers)}")
    return sorted(items, key=lambda item: item["index"])


def _shown(indices: list[int]) -> str:
    more = f" and {len(indices) - SHOWN_MISSING} more" if len(indices) > SHOWN_MISSING else ""
    return ", ".join(map(str, indices[:SHOWN_MISSING])) + more
