"""`mode=plan` shows what a run would do, from its configuration alone; it starts nothing and needs no GPU."""

import sys

from rich.console import Console

from vime.config import RunConfig
from vime.preflight.plan.models import serving
from vime.preflight.plan.processes import memory, placement_table
from vime.preflight.plan.steps import batch, evaluation, summary


def show_plan(config: RunConfig) -> None:
    """Writes the plan to standard output."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 130, highlight=False, soft_wrap=False)
    for heading, lines in (
        *(("Run", summary(config)), ("Batch", batch(config)), ("Evaluation", evaluation(config)), ("Serving", serving(config))),
    ):
        console.print(f"[bold]{heading}[/bold]")
        for line in lines:
            console.print(f"  {line}", markup=False)
    console.print(placement_table(config))
    console.print("[bold]Memory[/bold]")
    for line in memory(config):
        console.print(f"  {line}", markup=False)
    console.print("Nothing was started. Leave out mode=plan to run.")
