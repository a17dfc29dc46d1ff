"""Measures what the viewer costs: an open page while nothing changes, and what a run writes for it.

    python tools/bench_viewer.py RUN [--seconds 60] [--steps 12] [--json PATH]

RUN is a folder that the viewer shows. For the second part a small run is trained, in which the time is taken that its driver
spends on fetching the trainer's logprobs and on writing rollouts, as a share of its steps.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from bench_rows import Result, add_options, finish

from vime.loop import train
from vime.preflight.compose import compose_run
from vime.report.metrics import curves, read_metrics
from vime.session import Session
from vime.trainer.learner import Learner

CHROMIUM = "/usr/bin/chromium"
SETTLE_SECONDS = 10.0
PAGES = ("overview", "rollouts", "compare")
FIRST = 2
"""Steps that are left out: the first compile and load."""


def main() -> None:
    """Measures both parts and shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each page stays open")
    parser.add_argument("--steps", type=int, default=12, help="steps of the run that is trained; 0 trains none")
    parser.add_argument("--keep", type=Path, help="the folder of that run, which is removed otherwise")
    add_options(parser)
    given = parser.parse_args()
    result = Result(title="What the viewer costs", columns=("measured", "limit"))
    for page, share in idle(given.run, given.seconds).items():
        result.add(
            "viewer", f"server with the page `{page}` open while nothing changes", ours=share, reference=1.0, unit="% of a core"
        )
    if given.steps:
        for case, share in recording(given.steps, given.keep).items():
            result.add("viewer", case, ours=share, reference=3.0, unit="% of a step")
    finish(result, given)


def idle(run: Path, seconds: float) -> dict[str, float]:
    """Percent of a core that the server takes while a page is open in a browser, by page."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "vime.view", "--port", "0", str(run)]
    found: dict[str, float] = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stderr is not None
        address = re.search(r"http://\S+", server.stderr.readline())
        assert address is not None, "the viewer printed no address"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address[0])
        page.locator("tbody a").first.click()
        name = page.url.partition("?")[2]
        for shown in PAGES:
            page.evaluate("address => { location.hash = address; }", f"#{shown}?{name}")
            page.wait_for_timeout(1000 * SETTLE_SECONDS)
            before, started = psutil.Process(server.pid).cpu_times(), time.monotonic()
            page.wait_for_timeout(1000 * seconds)
            after = psutil.Process(server.pid).cpu_times()
            spent = after.user + after.system - before.user - before.system
            found[shown] = 100 * spent / (time.monotonic() - started)
        browser.close()
        server.terminate()
    return found


def recording(num_steps: int, keep: Path | None) -> dict[str, float]:
    """Percent of a step that a run spends on what it writes for the viewer, over all steps but the first."""
    spent: dict[str, list[float]] = {"trained_logprobs": [], "save_rollouts": []}
    Learner.trained_logprobs = timed(Learner.trained_logprobs, spent["trained_logprobs"])  # type: ignore[method-assign]
    Session.save_rollouts = timed(Session.save_rollouts, spent["save_rollouts"])  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        words = ["+method=memagent", f"trainer.num_steps={num_steps}", "evaluation.before=none", "evaluation.rows=[]"]
        run = keep or Path(folder) / "run"
        train(compose_run([*words, f"output_dir={run.absolute()}"]))
        _, steps = curves(read_metrics(run / "metrics.jsonl"))["time/step_seconds"]
    whole = sum(steps[FIRST:]) + sum(spent["save_rollouts"][FIRST:])
    return {
        "fetching the trainer's logprobs": 100 * sum(spent["trained_logprobs"][FIRST:]) / whole,
        "writing rollouts with the numbers of all tokens": 100 * sum(spent["save_rollouts"][FIRST:]) / whole,
    }


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The same coroutine function, which notes the seconds of each call."""

    async def measured(*arguments: Any, **options: Any) -> Any:
        started = time.monotonic()
        try:
            return await function(*arguments, **options)
        finally:
            spent.append(time.monotonic() - started)

    return measured


if __name__ == "__main__":
    main()
