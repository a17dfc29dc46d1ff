"""The section of the report on a method's `eval_log`: a table for each data set, and a chart for each figure."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vime.report.charts import Series, line_chart, number_text
from vime.report.sections import chart_grid

Logs = Mapping[str, Mapping[str, Any]]
"""Logs by the name of their file: data set, row, and the label of an evaluation during training."""
LINES = 8
"""Most lines of a chart."""


def eval_log_section(logs: Logs, datasets: Sequence[str]) -> str:
    """Metrics of all evaluations of a data set beside each other, and one chart for each figure; empty without logs."""
    if not logs:
        return ""
    tables = "".join(_table(dataset, of_dataset) for dataset, of_dataset in _by_dataset(logs, datasets).items())
    names = dict.fromkeys(name for log in logs.values() for name in log.get("figures", {}))
    charts = [
        _chart(name, {key: log["figures"][name] for key, log in logs.items() if name in log.get("figures", {})}) for name in names
    ]
    return "<h2>Evaluation logs</h2>" + tables + chart_grid([chart for chart in charts if chart])


def _by_dataset(logs: Logs, datasets: Sequence[str]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The logs by data set, then by row and label; a log of no known data set is under its own name."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, log in logs.items():
        dataset = max((each for each in datasets if name.startswith(f"{each}-")), key=len, default=name)
        found.setdefault(dataset, {})[name.removeprefix(f"{dataset}-")] = log
    return found


def _table(dataset: str, logs: Logs) -> str:
    """A table with one line for each metric, so that many metrics make it long and not wide."""
    metrics = list(dict.fromkeys(metric for log in logs.values() for metric in log.get("metrics", {})))
    if not metrics:
        return ""
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in logs)
    lines = []
    for metric in metrics:
        cells = "".join(f"<td>{_metric(log, metric)}</td>" for log in logs.values())
        lines.append(f"<tr><td>{escape(metric.replace('_', ' '))}</td>{cells}</tr>")
    return f'<div class="card"><table><tr><th>{escape(dataset)}</th>{head}</tr>{"".join(lines)}</table></div>'


def _chart(title: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The figure of all evaluations, or of the last ones where that would be more than `LINES` lines."""
    kept, num_lines = dict(figures), sum(len(figure["series"]) for figure in figures.values())
    while num_lines > LINES and len(kept) > 1:
        num_lines -= len(kept.pop(next(iter(kept)))["series"])
    numeric = all(isinstance(value, (int, float)) for figure in kept.values() for value in figure["x"])
    names = None if numeric else list(dict.fromkeys(str(value) for figure in kept.values() for value in figure["x"]))
    series = []
    for key, figure in kept.items():
        for label, ys in figure["series"].items():
            x, y = _points(figure["x"], ys, names)
            series.append(Series(label=key if len(figure["series"]) == 1 else f"{key}: {label}", x=x, y=y))
    left_out = len(figures) - len(kept)
    note = f"{left_out} earlier evaluations are in evaluation/*.json" if left_out else ""
    return line_chart(title.replace("_", " "), series, x_label="", names=names, smooth=False, note=note)


def _points(x: Sequence[Any], y: Sequence[Any], names: Sequence[str] | None) -> tuple[list[float], list[float]]:
    """The points of a line from left to right; a category of another evaluation, which has others, keeps its place in `names`."""
    places = [float(value if names is None else names.index(str(value))) for value in x]
    values = [math.nan if value is None else float(value) for value in y]
    points = zip(places, values)  # a line may end before its x values do
    found = list(points if names is None else sorted(points, key=lambda point: point[0]))
    return [place for place, _ in found], [value for _, value in found]


def _metric(log: Mapping[str, Any], metric: str) -> str:
    value = log.get("metrics", {}).get(metric)
    return "" if value is None else number_text(float(value))
