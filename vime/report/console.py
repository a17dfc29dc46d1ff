"""The display of a run: header, progress, one line per step, faults, and the table at the end.

In a terminal everything that takes time has a bar or a spinner; elsewhere (CI logs) plain lines report its progress now and then.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from vime.config import RunConfig
from vime.report.ending import RunEnding
from vime.report.logs import ConsoleHandler, log_to_file
from vime.report.step_line import Eta, step_line
from vime.report.tables import adapter_table, final_table, header_lines

logger = logging.getLogger(__name__)

PLAIN_LINE_SECONDS = 15.0
"""Outside a terminal: at least this long between two lines of one bar."""
LOG_WIDTH = 160
"""Columns outside a terminal."""


class Bar:
    """Progress of one activity; `total` None is a spinner."""

    def __init__(self, console: "Console", label: str, total: int | None) -> None:
        self._console, self._label, self._total = console, label, total
        self._completed = 0
        self._started = self._last_line = time.monotonic()
        self._task: TaskID | None = console._add_task(label, total)

    def advance(self, count: int = 1) -> None:
        """Counts finished pieces."""
        self._completed += count
        if self._task is not None:
            self._console._progress.update(self._task, advance=count)
        elif time.monotonic() - self._last_line > PLAIN_LINE_SECONDS:
            self._plain_line()

    def say(self, text: str) -> None:
        """Shows the present activity."""
        if self._task is not None:
            self._console._progress.update(self._task, description=f"{self._label}: {text}")
        elif time.monotonic() - self._last_line > PLAIN_LINE_SECONDS:
            self._plain_line(text)

    def close(self, *, is_done: bool = True) -> None:
        """Takes the bar off the screen; outside a terminal a line tells of long activities, and whether they ended."""
        if self._task is not None:
            self._console._remove_task(self._task)
            self._task = None
        elif not self._console.is_terminal and time.monotonic() - self._started > PLAIN_LINE_SECONDS:
            self._plain_line("done" if is_done else "broken off")

    def _plain_line(self, text: str = "") -> None:
        self._last_line = time.monotonic()
        count = f" {self._completed}/{self._total}" if self._total else ""
        seconds = f" after {self._last_line - self._started:.0f} s"
        self._console._print(f"  {self._label}{count}{seconds}{': ' if text else ''}{text}", style="dim")


class Console:
    """The console of one run, a context manager; also prints the warnings of all loggers above a running bar."""

    def __init__(self, *, num_steps: int, rich: RichConsole | None = None, label: str = "") -> None:
        """A `label` stands before every line of a console that is one of several; it has no bars, and no warnings of others."""
        self._label = label
        self._rich = rich or RichConsole(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
        self._num_steps = num_steps
        self._eta = Eta(num_steps)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._rich,
            transient=True,
        )
        self._num_tasks = 0
        self._activity: Bar | None = None
        self._started = time.monotonic()
        self._handlers: list[logging.Handler] = [] if label else [ConsoleHandler(self._show_record)]

    @property
    def is_terminal(self) -> bool:
        """True if a person may be watching."""
        return self._rich.is_terminal and not self._label

    def __enter__(self) -> "Console":
        for handler in self._handlers:
            logging.getLogger().addHandler(handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end_activity(is_done=error is None)
        self._progress.stop()
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()

    def header(self, config: RunConfig, path: Path) -> None:
        """Says what starts and where its folder is; from here on the log goes to `logs/driver.log` as well."""
        for line in header_lines(config, path):
            self._print(line)
        self._handlers.append(log_to_file(path / "logs" / "driver.log"))

    def say(self, text: str) -> None:
        """One line about the start, and a spinner until something else begins."""
        self._end_activity()
        self._print(f"  {time.monotonic() - self._started:6.1f} s  {text}", style="dim")
        self._activity = Bar(self, text, None)

    def warn(self, text: str) -> None:
        """One line that deserves a look."""
        self._print(f"! {text}", style="yellow")

    def scores(self, row: str, version: int, scores: Mapping[str, float]) -> None:
        """The scores of an evaluation that has ended, in percent by data set (`docs_20`), and the steps that its weights have."""
        if not scores:
            return
        shown = ", ".join(f"{name} {value:.1f}" for name, value in scores.items())
        self._print(f"  evaluated {row.replace('_', ' ')} after step {version}: {shown}")

    def fault(self, event: Mapping[str, Any]) -> None:
        """One line about something that broke and what was done about it."""
        self._print("! fault: " + ", ".join(f"{name} {value}" for name, value in event.items()), style="red")

    def first_sync(self, metrics: Mapping[str, float]) -> None:
        """Shows the first weight sync: how far servers and trainer agree before anything is trained."""
        cold, cached = metrics.get("probe/max_difference_cold"), metrics.get("probe/max_difference_cached")
        if cold is not None:
            also = "" if cached is None else f", {cached:.0e} with a cached prefix"
            self.say(f"servers hold the trainer's weights: logprobs differ by at most {cold:.0e}{also}")

    @contextmanager
    def progress(self, label: str, *, total: int | None = None) -> Iterator[Bar]:
        """A bar, or a spinner without `total`, while the block runs."""
        self._end_activity()
        bar, is_done = Bar(self, label, total), False
        try:
            yield bar
            is_done = True
        finally:
            bar.close(is_done=is_done)

    @contextmanager
    def rollouts(self, step: int, num_groups: int) -> Iterator[Bar]:
        """The bar of one batch (`step` counts from 0); a spinner follows until the step's line is shown."""
        with self.progress(f"step {step + 1}/{self._num_steps} rollouts", total=num_groups) as bar:
            yield bar
        self._activity = Bar(self, f"step {step + 1}/{self._num_steps} training", None)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """The line of a finished step (counted from 1)."""
        self._end_activity()
        remaining = self._eta.after(step, metrics.get("time/step_seconds", 0.0))
        width = self._rich.width if self.is_terminal else None
        self._print(step_line(step, self._num_steps, metrics, remaining_seconds=remaining, width=width))

    def table(self, summary: Mapping[str, Any], report: Path) -> None:
        """The scores of the run and where to read more."""
        self._end_activity()
        if summary["datasets"]:
            self._rich.print(final_table(summary))
        minutes, seconds = divmod(round(summary["wall_seconds"]), 60)
        failed = f", {summary['num_failed_rollouts']} of them failed" if summary["num_failed_rollouts"] else ""
        self._print(f"{summary['num_steps']} steps, {summary['num_rollouts']} rollouts{failed}, {minutes} min {seconds} s")
        self._print(f"report  {report}")

    def ended(self, ending: RunEnding, report: Path) -> None:
        """Shows how far a run has come that ends early, and how to continue it; the program shows the error itself."""
        self._end_activity(is_done=False)
        for line in [*ending.lines(), f"report  {report}", f"logs    {report.parent / 'logs'}"]:
            self._print(line)

    def adapters(self, endings: Mapping[str, RunEnding | None]) -> None:
        """Several adapters of a run, and why some stopped before their last step."""
        self._end_activity()
        self._rich.print(adapter_table(endings))

    def _print(self, text: str, style: str = "") -> None:
        shown = f"{self._label}: {text}" if self._label else text
        self._rich.print(Text(shown, style=style), soft_wrap=True)
        logger.info("%s", shown.strip())

    def _show_record(self, text: str) -> None:
        """A warning that is in the log already."""
        self._rich.print(Text(f"! {text}", style="yellow"), soft_wrap=True)

    def _add_task(self, label: str, total: int | None) -> TaskID | None:
        if not self.is_terminal:
            return None
        self._progress.start()
        self._num_tasks += 1
        return self._progress.add_task(label, total=total)

    def _remove_task(self, task: TaskID) -> None:
        self._progress.remove_task(task)
        self._num_tasks -= 1
        if self._num_tasks == 0:
            self._progress.stop()

    def _end_activity(self, *, is_done: bool = True) -> None:
        if self._activity is not None:
            self._activity.close(is_done=is_done)
            self._activity = None
