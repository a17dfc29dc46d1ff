"""Reads evaluations back from their items: complete ones only, anything else is refused by name.

An evaluation is complete if every row, run and data set that its configuration asks for has every item exactly once.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.data.protocol import PROTOCOL, read_protocol
from vime.evaluation_rows import SCAFFOLD, TRAINED
from vime.report.jsonl import read_lines
from vime.report.run_directory import RunDirectory, read_config
from vime.report.summary import IncompleteRunError, RunScore

_FILE = re.compile(
    r"(?P<dataset>.+)-(?P<row>(single_turn|scaffold|trained)(@[^-]+)?)(-(?P<label>[a-z]+\d*))?-t(?P<temperature>[\d.e-]+)-run(?P<run>\d+)"
)
SHOWN_MISSING = 5
Key = tuple[str, str, int]


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
    """The evaluation in a run folder; `rows` are those that must be there, by default all that the run was asked for.

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
    found = _read_files(folder, temperature=settings["temperature"])
    items: dict[tuple[str, str], list[list[dict[str, Any]]]] = defaultdict(list)
    for dataset, about in protocol["datasets"].items():
        for row in wanted:
            for run in range(settings["num_runs"]):
                where = f"{run_path}: {dataset}, {row}, run {run}"
                items[dataset, row].append(_whole(found.get((dataset, row, run)), about["num_items"], where))
    return Evaluation(config=config, protocol=protocol, items=dict(items))


def _rows(config: dict[str, Any]) -> list[str]:
    """As `vime.evaluation_rows.rows_of`, of a configuration that was read from a file."""
    rows = config["evaluation"]["rows"]
    return [row for row in rows if row != TRAINED] if config["mode"] == "eval" and SCAFFOLD in rows else rows


def _read_files(folder: Path, *, temperature: float) -> dict[Key, list[dict[str, Any]]]:
    """Items by data set, row and run, of evaluations that enter the table."""
    found: dict[Key, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        name = _FILE.fullmatch(path.stem)
        if name and not name["label"] and float(name["temperature"]) == temperature:
            found[name["dataset"], name["row"], int(name["run"])] = read_lines(path)
    return found


def _whole(items: list[dict[str, Any]] | None, num_items: int, where: str) -> list[dict[str, Any]]:
    """The items in order, each exactly once."""
    if items is None:
        raise IncompleteRunError(f"{where} is incomplete: it was not begun ({num_items} items)")
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
