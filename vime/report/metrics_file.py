"""`metrics.jsonl`: one line per step and evaluation, written as it happens, cut back when a run is resumed.

A line is `{"step": 12, "time": 1712345678.9, "reward/mean": 0.41, …}`; the names are explained in this folder's README.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from vime.files.jsonl import append_line, cut_torn_line, read_lines, write_lines

Row = dict[str, Any]
Curve = tuple[list[int], list[float]]
"""Steps and values."""


class MetricsWriter:
    """Appends to the metrics of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        cut_torn_line(path)

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Appends one line for `step`; a step may have several."""
        row: Row = {"step": step, "time": time.time()}
        append_line(self._path, row | {name: float(value) for name, value in metrics.items()})

    def truncate_after(self, step: int) -> None:
        """Drops the lines of later steps, for a run that goes on after `step`."""
        rows = read_lines(self._path)
        kept = [row for row in rows if row["step"] <= step]
        if len(kept) != len(rows):
            write_lines(self._path, kept)


def read_metrics(path: Path) -> list[Row]:
    """The lines in the order they were written; an empty list if there is no file."""
    return read_lines(path)


def curves(rows: list[Row]) -> dict[str, Curve]:
    """Each metric over the steps that have it, in the order of steps."""
    found: dict[str, Curve] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        for name, value in row.items():
            if name not in ("step", "time"):
                steps, values = found.setdefault(name, ([], []))
                steps.append(row["step"])
                values.append(value)
    return found
