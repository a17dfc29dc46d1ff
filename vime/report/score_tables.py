"""The tables of scores in the report. Each returns HTML, empty without data."""

from collections.abc import Mapping
from html import escape
from typing import Any

from vime.report.tables import spread_text


def score_table(datasets: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """Rows x data sets: strict mean ± SD and the lenient mean; a row that was not run says so."""
    if not datasets:
        return ""
    heads = []
    for name, rows in datasets.items():
        first = next(iter(rows.values()), None)
        size = f"{first['num_items']} items x {_runs(first['num_runs'])}" if first else ""
        heads.append(f"<th>{escape(name)}<br><small>{size}</small></th>")
    lines = []
    for row, label in labels.items():
        cells = "".join(f"<td>{_score_cell(rows.get(row))}</td>" for rows in datasets.values())
        lines.append(f"<tr{' class=strong' if row == 'trained' else ''}><td>{label}</td>{cells}</tr>")
    note = (
        "Strict score in percent, mean ± standard deviation over runs; [standard error over items]; "
        "the lenient score in parentheses. Failed items count as 0."
    )
    table = f"<table><tr><th></th>{''.join(heads)}</tr>{''.join(lines)}</table>"
    return f'<h2>Scores</h2><div class="card">{table}<p>{note}</p></div>'


def temperature_table(temperatures: Mapping[str, Mapping[str, float]]) -> str:
    """The untrained scaffold at other sampling temperatures, one run each."""
    if not temperatures:
        return ""
    columns = sorted({key for scores in temperatures.values() for key in scores}, key=float)
    head = "".join(f"<th>temperature {escape(key)}</th>" for key in columns)
    lines = [
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{_plain_score(scores.get(key))}</td>' for key in columns)}</tr>"
        for name, scores in temperatures.items()
    ]
    title = "<h2>Untrained scaffold at other temperatures <small>(one run each)</small></h2>"
    return f'{title}<div class="card"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def pass_table(datasets: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """pass@k and pass^k by row and data set, where they were asked for."""
    lines = []
    for name, rows in datasets.items():
        for row, label in labels.items():
            score = rows.get(row, {})
            for k, share in score.get("pass_at", {}).items():
                cells = f"<td>{share:.1f}</td><td>{score['pass_every'][k]:.1f}</td>"
                lines.append(f"<tr><td>{escape(name)}, {escape(label)}</td><td>{k}</td>{cells}</tr>")
    if not lines:
        return ""
    head = "<tr><th></th><th>k</th><th>pass@k: solved in k runs</th><th>pass^k: solved in all k</th></tr>"
    return f'<h2>Solved in several runs</h2><div class="card"><table>{head}{"".join(lines)}</table></div>'


def _score_cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return '<span class="absent">not run</span>'
    if "mean" not in score:
        return f'<span class="absent">{score["num_done"]} of {_runs(score["num_runs"])}</span>'
    num_runs = score["num_runs"]
    small = f"[{score['standard_error']:.1f}] ({spread_text(score['lenient'], num_runs=num_runs)})"
    return f"{spread_text(score, num_runs=num_runs)} <small>{small}</small>"


def _plain_score(score: float | None) -> str:
    return '<span class="absent">not run</span>' if score is None else f"{score:.1f}"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
