"""The figure of a results page: scores by length of the input, one line for each row of the table and seed."""

from typing import Any

from svg_chart import standalone_chart

from vime.report.charts import Series
from vime.report.sections import lengths_of


def score_figure(tables: list[dict[str, Any]]) -> str | None:
    """The figure of the run with the most lengths among the tables (`small` of a page), as a whole SVG file.

    Lines are means over the runs of an evaluation, with the standard deviation as bars. None where no run has data sets whose
    names end in growing numbers (`docs_20`, `docs_40`, …).
    """
    by_length = [table for table in tables if lengths_of(table["columns"])]
    if not by_length:
        return None
    longest = max(by_length, key=lambda table: len(table["columns"]))
    chosen = [table for table in by_length if (table["run"], table["columns"]) == (longest["run"], longest["columns"])]
    series = [_series(row, f"{row['name']}, seed {table['seed']}") for table in chosen for row in table["rows"]]
    title = f"{longest['run']}: strict score by length, mean ± SD of {_num_runs(longest)} runs"
    return standalone_chart(title, series, x_label="data set", y_label="strict score, %", names=longest["columns"])


def _series(row: dict[str, Any], label: str) -> Series:
    cells = [(float(place), cell) for place, cell in enumerate(row["strict"]) if cell is not None]
    return Series(
        label=label, x=[x for x, _ in cells], y=[cell["mean"] for _, cell in cells], error=[cell["sd"] for _, cell in cells]
    )


def _num_runs(table: dict[str, Any]) -> int:
    return next(cell["num_runs"] for row in table["rows"] for cell in row["strict"] if cell is not None)
