"""The metrics of a method's `eval_log` about a whole run: all data sets of a row together, and each by itself.

Data decide which of its metrics are in a results page: `logs` of `results/papers/METHOD.yaml`, with a title for each.
"""

from pathlib import Path
from typing import Any

from svg_chart import standalone_chart

from vime.evaluation.conditions import SCAFFOLD, SINGLE_TURN, label_of
from vime.hooks import load_hook
from vime.report.charts import Series
from vime.report.items import read_evaluation
from vime.types import EvalLog

ALL = "all"
Item = dict[str, Any]


def read_logs(path: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """Metrics by row and data set, and the figure's lines; None if the run had no `eval_log`.

    `about` is `{"metrics": {name: title}, "figure": name, "title": …, "x_label": …}`, with or without a figure. The figure shows
    each row over all data sets, or with `"each": row` the data sets of that row. Raises the errors of `read_evaluation`.
    """
    evaluation = read_evaluation(path)
    if not evaluation.config["method"]["eval_log"]:
        return None
    hook = load_hook(evaluation.config["method"]["eval_log"])
    items: dict[str, dict[str, list[Item]]] = {}
    for (dataset, row), runs in evaluation.items.items():
        if not row.startswith(SINGLE_TURN):
            found = [{**item, "dataset": dataset} for run in runs for item in run]
            items.setdefault(row, {ALL: []})[dataset] = found
            items[row][ALL] += found
    logs = {row: {name: hook(None, found) for name, found in by_dataset.items()} for row, by_dataset in items.items()}
    return {
        "run": evaluation.config["name"],
        "seed": evaluation.config["seed"],
        "columns": list(about["metrics"].values()),
        "rows": [
            {"name": f"{label_of(row)}, {dataset}", "values": _values(log, items[row][dataset], about["metrics"])}
            for row, by_dataset in logs.items()
            for dataset, log in by_dataset.items()
        ],
        "figure": {
            name: log.figures[about["figure"]] for name, log in _shown(logs, about).items() if about.get("figure") in log.figures
        },
    }


def figure_of(logs: dict[str, Any], about: dict[str, Any]) -> str:
    """The figure of a run as a whole SVG file; a name that all lines have in common is the axis label."""
    names = {name for figure in logs["figure"].values() for name in figure["series"]}
    series = [
        Series(label=row if len(names) == 1 else f"{row}: {name}", x=list(figure["x"]), y=list(values))
        for row, figure in logs["figure"].items()
        for name, values in figure["series"].items()
    ]
    title = f"{about['title']}: {logs['run']}, seed {logs['seed']}"
    return standalone_chart(title, series, x_label=about["x_label"], y_label=names.pop() if len(names) == 1 else "")


def _shown(logs: dict[str, dict[str, EvalLog]], about: dict[str, Any]) -> dict[str, EvalLog]:
    """Returns the logs that the figure draws, by the label of their line.

    `logs` holds an `EvalLog` by row and data set. There is one line for each row, or with `about["each"]`, the name of a row, one
    for each data set of that row, and one for the untrained scaffold on the last of them.
    """
    if "each" not in about:
        return {label_of(row): by_dataset[ALL] for row, by_dataset in logs.items()}
    found = {row: [(name, log) for name, log in logs.get(row, {}).items() if name != ALL] for row in (SCAFFOLD, about["each"])}
    chosen = [(SCAFFOLD, *pair) for pair in found[SCAFFOLD][-1:] if about["each"] != SCAFFOLD]
    chosen += [(about["each"], *pair) for pair in found[about["each"]]]
    return {f"{label_of(row)}, {name}": log for row, name, log in chosen}


def _values(log: EvalLog, items: list[Item], metrics: dict[str, str]) -> list[float | None]:
    solved = 100 * sum(item["strict"] for item in items) / len(items)
    return [solved if name == "strict" else log.metrics.get(name) for name in metrics]
