"""Compares two evaluations item by item: the difference of their means with its 95 % interval, by data set.

    python tools/compare_evaluations.py outputs/a/2026-01-01_10-00-00:scaffold outputs/a/2026-01-01_10-00-00:trained
    python tools/compare_evaluations.py RUN_A:trained RUN_B:trained --json comparison.json

Each side is a run folder and a row (single_turn, scaffold, trained, scaffold@NAME, …), complete and of the same items.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from vime.report.items import Evaluation, read_evaluation
from vime.report.paired import PairedComparison, compare
from vime.report.summary import IncompleteRunError
from vime.surroundings import settle

SCORES = ("strict", "lenient")
WIDTH = 130
"""Columns of the table if the output is not a terminal."""
Comparisons = dict[tuple[str, str], PairedComparison]


def read_side(text: str) -> tuple[Evaluation, str]:
    """The evaluation and the row of `RUN:ROW`.

    Raises `ValueError` without a row, `IncompleteRunError` if the row is not complete, `FileNotFoundError` without a run.
    """
    path, separator, row = text.rpartition(":")
    if not separator:
        raise ValueError(f"{text} names no row: give RUN:ROW, for example {text}:scaffold")
    return read_evaluation(Path(path), rows=[row]), row


def comparisons(first: str, second: str) -> Comparisons:
    """Every data set that both have, by strict and lenient score.

    Raises `IncompleteRunError` if they have none in common.
    """
    (a, row_a), (b, row_b) = read_side(first), read_side(second)
    datasets = [name for name in a.protocol["datasets"] if name in b.protocol["datasets"]]
    if not datasets:
        raise IncompleteRunError(f"{first} and {second} have no data set in common")
    return {
        (dataset, score): compare(a.items[dataset, row_a], b.items[dataset, row_b], score=score)
        for dataset in datasets
        for score in SCORES
    }


def table_of(found: Comparisons, first: str, second: str) -> Table:
    """One line per data set and score."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{second}\nminus {first}", title_justify="left")
    for name in ("data set", "score", "items", "first", "second", "difference", "95 % interval", "better", "worse"):
        table.add_column(name, justify="left" if name in ("data set", "score") else "right")
    for (dataset, score), c in found.items():
        interval = f"[{c.low:+.1f}, {c.high:+.1f}]" + ("" if c.is_different else " holds 0")
        numbers = (str(c.num_items), f"{c.first:.1f}", f"{c.second:.1f}", f"{c.difference:+.1f}", interval)
        table.add_row(dataset, score, *numbers, str(c.num_better), str(c.num_worse))
    return table


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Compares the two sides of the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", help="RUN:ROW")
    parser.add_argument("second", help="RUN:ROW")
    parser.add_argument("--json", type=Path, help="write the numbers as well")
    given = parser.parse_args(arguments)
    try:
        found = comparisons(given.first, given.second)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(table_of(found, given.first, given.second))
    if given.json:
        rows = [{"dataset": dataset, "score": score, **asdict(c)} for (dataset, score), c in found.items()]
        given.json.write_text(json.dumps({"first": given.first, "second": given.second, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
