"""Puts runs side by side: settings that differ, final scores, wall time and curves.

    python tools/compare_runs.py outputs/a/2026-01-01_10-00-00 outputs/a/2026-01-02_10-00-00 --html compare.html

A sweep's folder means all its runs. `--markdown PATH --title TITLE` writes the settings that differ, the scores and the reward of
each step as tables.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vime.evaluation.conditions import LABELS, label_of
from vime.report.charts import Series, line_chart, number_text
from vime.report.html import write_page
from vime.report.metric_units import unit_of
from vime.report.metrics_file import Curve, curves, read_metrics
from vime.report.run_directory import find_runs, read_config
from vime.report.sections import chart_grid
from vime.report.settings import differences, flatten, sweep_names
from vime.report.step_line import duration
from vime.report.summary import read_summary
from vime.report.tables import measured_rows, score_text
from vime.surroundings import settle

REWARD = "reward/mean"
METRICS = (
    *(REWARD, "reward/strict", "train/loss", "train/grad_norm", "train/kl", "train/entropy"),
    *("train/logprob_difference_max", "rollout/turns_mean", "rollout/response_tokens_mean", "time/step_seconds"),
)
"""Curves that are shown, where the runs have them."""
BLOCKS = "▁▂▃▄▅▆▇█"
MAX_SPARKLINE_WIDTH, MIN_SPARKLINE_WIDTH = 40, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run as read from its folder; `summary` is None while it is unfinished.

    Example: `Run(name="memagent/2026-01-01_10-00-00", settings={"seed": "0", …}, summary={…}, curves={"reward/mean": …})`.
    """

    name: str
    settings: dict[str, str]
    summary: dict[str, Any] | None
    curves: dict[str, Curve]


def read_run(path: Path, name: str) -> Run:
    """Reads the files that a run has left so far."""
    settings = flatten(read_config(path))
    return Run(name=name, settings=settings, summary=read_summary(path), curves=curves(read_metrics(path / "metrics.jsonl")))


def score_rows(runs: list[Run]) -> dict[str, list[str]]:
    """Final scores, steps, rollouts, times and the machine's speed by run."""
    datasets = dict.fromkeys(name for run in runs if run.summary for name in run.summary["datasets"])
    rows: dict[str, list[str]] = {"state": ["finished" if run.summary else "unfinished" for run in runs]}
    for dataset in datasets:
        measured = measured_rows([run.summary["datasets"].get(dataset, {}) for run in runs if run.summary])
        for row in [*LABELS, *(row for row in measured if row not in LABELS)]:
            label = label_of(row)
            scores = [run.summary["datasets"].get(dataset, {}).get(row) if run.summary else None for run in runs]
            if any(scores):
                rows[f"{dataset}, {label}"] = [score_text(score) if run.summary else "-" for run, score in zip(runs, scores)]
    rows["steps"] = [str(max((max(steps) for steps, _ in run.curves.values()), default=0)) for run in runs]
    for key in ("num_rollouts", "num_failed_rollouts"):
        rows[key.replace("num_", "").replace("_", " ")] = [_summary_text(run, key, str) for run in runs]
    for key, label in (("wall_seconds", "wall time"), ("first_step_seconds", "time to the first step")):
        rows[label] = [_summary_text(run, key, duration) for run in runs]
    rows["matrix products, GFLOP/s"] = [
        f"{run.summary['machine']['matmul_gflops_float32']:.0f}" if run.summary else "-" for run in runs
    ]
    return rows


def sparkline(values: list[float], low: float, high: float, width: int) -> str:
    """A curve in block characters between two ends; a bin without a finite value is a blank."""
    bins = min(width, len(values))
    text = ""
    for number in range(bins):
        part = [v for v in values[number * len(values) // bins : (number + 1) * len(values) // bins] if math.isfinite(v)]
        share = (math.fsum(part) / len(part) - low) / ((high - low) or 1.0) if part else 0.0
        text += BLOCKS[round(share * (len(BLOCKS) - 1))] if part else " "
    return text


def curve_rows(runs: list[Run], width: int) -> dict[str, list[str]]:
    """A sparkline and the last value of each metric, on the same scale for all runs."""
    rows: dict[str, list[str]] = {}
    for metric in METRICS:
        found = [run.curves.get(metric, ([], []))[1] for run in runs]
        finite = [value for values in found for value in values if math.isfinite(value)]
        if finite:
            ends = min(finite), max(finite)
            rows[metric] = [f"{sparkline(values, *ends, width)} {number_text(values[-1])}" if values else "-" for values in found]
    return rows


def write_html(path: Path, runs: list[Run], blocks: Mapping[str, dict[str, list[str]]]) -> Path:
    """One page with the tables and the curves of all runs on common axes."""
    head = "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    body = f'<h1>{len(runs)} runs</h1><p class="sub">strict scores in percent, mean ± SD over runs (lenient)</p>'
    for title, rows in blocks.items():
        lines = [
            f"<tr><td>{escape(key)}</td>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for key, row in rows.items()
        ]
        table = f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>" if rows else "<p>none</p>"
        body += f'<h2>{title}</h2><div class="card">{table}</div>'
    charts = []
    for metric in METRICS:
        with_metric = [(run, run.curves[metric]) for run in runs if metric in run.curves]
        series = [Series(label=run.name, x=[float(step) for step in steps], y=values) for run, (steps, values) in with_metric]
        charts.append(line_chart(metric, series, y_label=unit_of(metric)))
    return write_page(
        path, title="runs compared", body=body + "<h2>Curves</h2>" + chart_grid([chart for chart in charts if chart])
    )


def write_markdown(path: Path, title: str, runs: list[Run], blocks: Mapping[str, dict[str, list[str]]]) -> Path:
    """The settings that differ, the scores, and the reward of each step; scores in percent, mean ± SD over runs (lenient)."""
    lines = [f"# {title}", ""]
    for run in runs:
        if run.summary:
            machine = run.summary["machine"]
            load = ", ".join(f"{value:.1f}" for value in machine["load_average"])
            lines.append(
                f"- {run.name}: finished {run.summary['finished']}, on {machine['processor']} with {machine['num_usable_cores']} "
                f"cores and {machine['memory_gib']} GiB, load average at the end {load}"
            )
    lines += ["- scores are strict, in percent, mean ± standard deviation over the evaluation's runs, lenient ones in brackets"]
    rewards = [dict(zip(*run.curves.get(REWARD, ([], [])), strict=True)) for run in runs]
    steps = sorted({step for reward in rewards for step in reward})
    by_step = {str(step): [f"{reward[step]:.3f}" if step in reward else "-" for reward in rewards] for step in steps}
    for name, rows in {**blocks, f"{REWARD} by step": by_step}.items():
        head = ["", f"## {name}", "", f"| | {' | '.join(run.name for run in runs)} |", f"|---{'|--:' * len(runs)}|"]
        lines += head + [f"| {key} | {' | '.join(row)} |" for key, row in rows.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Compares the runs of the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or sweep folders")
    parser.add_argument("--html", type=Path, help="write a page with the curves on common axes as well")
    parser.add_argument("--markdown", type=Path, help="write the tables as Markdown as well")
    parser.add_argument("--title", default="Runs compared", help="title of these tables")
    given = parser.parse_args(arguments)
    console = console or Console(highlight=False)
    try:
        paths = find_runs(given.runs)
    except FileNotFoundError as error:
        parser.error(str(error))
    runs = [read_run(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    differing = differences([run.settings for run in runs])
    names = sweep_names([run.name for run in runs], differing)
    runs = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
    width = max(MIN_SPARKLINE_WIDTH, min(MAX_SPARKLINE_WIDTH, (console.width - 34) // len(runs) - 12))
    blocks = {"Settings that differ": differing, "Results": score_rows(runs)}
    for title, rows in (blocks | {"Curves": curve_rows(runs, width)}).items():
        console.print(_table(title, runs, rows))
    if given.markdown:
        console.print(f"tables  {write_markdown(given.markdown, given.title, runs, blocks)}", soft_wrap=True)
    if given.html:
        console.print(f"page  {write_html(given.html, runs, blocks)}", soft_wrap=True)


def _table(title: str, runs: list[Run], rows: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("", overflow="fold")
    for run in runs:
        table.add_column(run.name, overflow="fold")
    for key, values in (rows or {"none": ["" for _ in runs]}).items():
        table.add_row(key, *values)
    return table


def _names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _summary_text(run: Run, key: str, text: Any) -> str:
    return "-" if run.summary is None or run.summary[key] is None else text(run.summary[key])


if __name__ == "__main__":
    main()
