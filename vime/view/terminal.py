"""The viewer in a terminal, for clusters without a browser: curves, alarms, the last rollouts and the faults of one run."""

import math
import time
from contextlib import closing
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vime.report.charts import number_text, smoothing
from vime.report.metrics_file import Curve, curves
from vime.report.run_directory import METRICS
from vime.report.step_line import duration, step_line
from vime.view.index_entry import TRAINING
from vime.view.overview import numbers, overview
from vime.view.progress import SECONDS, seconds_left
from vime.view.query import Filters, find
from vime.view.runs import Run

LOOK_SECONDS = 2.0
CURVES = ("reward/mean", "train/entropy", "train/logprob_difference_mean", "time/step_seconds")
HEIGHT, NUM_ROLLOUTS, NUM_FAULTS, NUM_EVALUATIONS = 3, 8, 4, 2
BLOCKS = " ▁▂▃▄▅▆▇█"


def watch(run: Run, console: Console, *, once: bool) -> None:
    """Shows a run until it is interrupted, drawn anew when its files have changed; `once` shows it a single time."""
    if once:
        console.print(screen(run, width=console.width))
        return
    seen = ""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            if (now := run.fingerprint()) != seen:
                seen = "" if run.indexed()[1] else now
                live.update(screen(run, width=console.width), refresh=True)
            time.sleep(LOOK_SECONDS)


def screen(run: Run, *, width: int) -> RenderableType:
    """The view of a run, within a width in characters."""
    about = overview(run)
    rows = run.lines(METRICS)
    found = curves(rows)
    evaluations = [name for name in found if name.startswith("evaluation/")][:NUM_EVALUATIONS]
    shown = [name for name in CURVES if name in found] + evaluations
    charts = [Panel(chart(found[name], width // 2 - 4), title=_title(name, about), title_align="left") for name in shown]
    grid = Table.grid(expand=True)
    for first in range(0, len(charts), 2):
        grid.add_row(*charts[first : first + 2])
    alarms = [_plain(f"{a['name']}, step {a['step']}: {a['seen']}. {a['meaning']}", style="yellow") for a in about["alarms"]]
    return Group(_head(about, _last_step(rows, about, width)), *alarms, grid, _rollouts(run), *_faults(about["faults"]))


def chart(curve: Curve, width: int) -> Text:
    """A curve in block characters, `HEIGHT` lines high, smoothed as in the report, with its range beside it."""
    steps, values = curve[0], [math.nan if value is None else value for value in curve[1]]
    if len(values) >= 20:
        values = smoothing(values)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Text("no finite value")
    low, high = min(finite), max(finite)
    labels = [number_text(high), *[""] * (HEIGHT - 2), number_text(low)]
    margin = max(map(len, labels)) + 1
    bins = _bins(values, max(width - margin, 8))
    rows = []
    for row in range(HEIGHT):
        bottom = (HEIGHT - 1 - row) * 8
        heights = [-1 if math.isnan(v) else 1 + round((v - low) / ((high - low) or 1.0) * (HEIGHT * 8 - 1)) for v in bins]
        line = "".join(BLOCKS[max(0, min(8, height - bottom))] for height in heights)
        rows.append(f"{labels[row]:>{margin - 1}} {line}")
    last = "-" if curve[1][-1] is None else number_text(curve[1][-1])
    return Text("\n".join([*rows, f"{'':>{margin}}step {steps[0]} to {steps[-1]}, last {last}"]), no_wrap=True)


def _bins(values: list[float], width: int) -> list[float]:
    """Means of neighbours, so that all values fit; fewer values are drawn wider."""
    if len(values) < width:
        return [values[place * len(values) // width] for place in range(width)]
    found = []
    for number in range(width):
        part = [v for v in values[number * len(values) // width : (number + 1) * len(values) // width] if math.isfinite(v)]
        found.append(math.fsum(part) / len(part) if part else math.nan)
    return found


def _title(name: str, about: dict[str, Any]) -> Text:
    unit = about["units"].get(name, "")
    return _plain(f"{name}, {unit}" if unit else name)


def _last_step(rows: list[dict[str, Any]], about: dict[str, Any], width: int) -> str:
    """The line of the last step, without fields that do not fit."""
    num_steps = about["config"]["trainer"]["num_steps"]
    steps = [row for row in rows if SECONDS in row]
    if not steps:
        return "no step has ended yet"
    left = seconds_left(steps, num_steps)[-1]
    return step_line(steps[-1]["step"], num_steps, numbers(steps[-1]), remaining_seconds=left, width=width)


def _head(about: dict[str, Any], last_step: str) -> RenderableType:
    left = f", {duration(about['eta_seconds'])} left" if about["eta_seconds"] is not None and about["ending"] is None else ""
    head = _plain(f"{about['name']}: {about['state']}{left}\n{last_step}", style="bold")
    if about["ending"] is None:
        return head
    last = about["ending"]["text"].rstrip().rpartition("\n")[2]  # of a traceback, the error itself
    return Group(head, *[_plain(line, style="red") for line in (*about["ending"]["lines"], last) if line])


def _rollouts(run: Run) -> RenderableType:
    """The last rollouts of training; the last items of evaluations, if nothing was trained yet."""
    index, more = run.indexed()
    with closing(index.connection()) as database:
        trained = find(database, Filters(kind=TRAINING), limit=NUM_ROLLOUTS).rows
        rows = trained or find(database, Filters(), limit=NUM_ROLLOUTS).rows
    table = Table(title="last rollouts" + (" (files are still being read)" if more else ""), title_justify="left", box=None)
    for name in ("step", "data set", "item", "reward", "turns", "tokens", "stop reason"):
        table.add_column(name, justify="left" if name in ("data set", "stop reason") else "right")
    for row in rows:
        where = row["dataset"] + (f", {row['condition']}" if row["condition"] else "")
        numbers = [str(row["item"]), number_text(row["reward"]), str(row["num_turns"]), str(row["num_tokens"])]
        table.add_row(str(row["step"]), _plain(where), *numbers, _plain(row["stop_reason"]))
    return table


def _faults(faults: list[dict[str, Any]]) -> list[RenderableType]:
    lines = [", ".join(f"{key} {value}" for key, value in fault.items()) for fault in faults[-NUM_FAULTS:]]
    return [Text("faults", style="italic"), *[_plain(line, style="red") for line in lines]] if lines else []


def _plain(text: str, style: str = "") -> Text:
    """A text of a run without the control characters by which it could write over the terminal."""
    return Text("".join(sign if sign.isprintable() or sign == "\n" else "\ufffd" for sign in text), style=style)
