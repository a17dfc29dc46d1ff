"""`mode=plan` shows the plan of a run, from its configuration alone; it starts nothing and needs no GPU."""

import re
import sys
import textwrap

from rich.console import Console

from vime.config import RunConfig
from vime.preflight.plan.duration import time
from vime.preflight.plan.models import serving
from vime.preflight.plan.planned_processes import memory, placement_table
from vime.preflight.plan.steps import batch, evaluation, summary

_NUMBER_AND_UNIT = re.compile(r"(\d) ([KMG]iB|tokens|sequences|GPUs)\b")


Section = tuple[str, list[str]]
"""A heading and its lines."""


def show_plan(config: RunConfig) -> None:
    """Writes the plan of a run to standard output."""
    run, batches = ("Run", summary(config)), ("Batch", batch(config))
    sections = [run, batches, ("Evaluation", evaluation(config)), ("Serving", serving(config)), ("Time", time(config))]
    show_sections(config, sections)


def show_sections(config: RunConfig, sections: list[Section]) -> None:
    """Writes sections to standard output, and behind them placement and memory of trainer and servers."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 130, highlight=False, soft_wrap=False)

    def write(heading: str, lines: list[str]) -> None:
        console.print(f"[bold]{heading}[/bold]")
        for line in lines:
            console.print(wrapped(line, console.width), markup=False, soft_wrap=True)

    for heading, lines in sections:
        write(heading, lines)
    console.print(placement_table(config))
    write("Memory", memory(config))
    console.print("Nothing was started. Remove mode=plan to run.")


def wrapped(line: str, width: int) -> str:
    """A line of the plan, indented and broken between words, but not between a number and its unit."""
    bound = _NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", line)
    broken = textwrap.fill(
        bound, width, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    return broken.replace("\N{NO-BREAK SPACE}", " ")
