"""Measures what the viewer costs: an open page while nothing changes, and what a run writes for it.

    python tools/bench_viewer.py RUN [--seconds 60] [--steps 12] [--pairs 3] [--keep FOLDER] [--json PATH]

RUN is a folder that the viewer shows. For the second part a small run is trained, in which the time is taken that its driver
spends on fetching the trainer's logprobs and on writing rollouts, as a share of its steps. For the third part the same run is
trained in turns with everything recorded and with nothing, on the real servers; `--keep` names the folder of these runs, and what
ended there is not run again.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
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
WORDS = ("+method=memagent", "evaluation.before=none", "evaluation.rows=[]")
SIDES = {
    "everything": ("logger.rollouts=tokens", "logger.trace_share=1"),
    "nothing": ("logger.rollouts=none", "logger.trace_share=0"),
}
"""What the two runs of a pair record; with `trace_share=1` the timelines of all rollouts as well."""
PROCESSES = {"driver": "", "rollout workers": "ray::RolloutWorker", "trainer": "ray::TrainerRank"}
"""Whose CPU time is taken, by the beginning of their command lines."""
SPENT = "spent.json"


def main() -> None:
    """Measures both parts and shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each page stays open")
    parser.add_argument("--steps", type=int, default=12, help="steps of the run that is trained; 0 trains none")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of such runs that are trained in turns")
    parser.add_argument("--keep", type=Path, help="the folder of all these runs, which is removed otherwise")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    add_options(parser)
    given = parser.parse_args()
    if given.side:
        train_side(given.run, given.side, given.steps)
        return
    result = Result(title="What the viewer costs", columns=("measured", "limit"))
    for page, share in idle(given.run, given.seconds).items():
        result.add(
            "viewer", f"server with the page `{page}` open while nothing changes", ours=share, reference=1.0, unit="% of a core"
        )
    if given.steps:
        for case, share in recording(given.steps, given.keep).items():
            result.add("viewer", case, ours=share, reference=3.0, unit="% of a step")
    if given.pairs:
        with tempfile.TemporaryDirectory() as folder:
            compare(result, pairs(given.keep or Path(folder), given.pairs, given.steps))
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
        run = (keep or Path(folder)) / "run"
        train(compose_run([*WORDS, f"trainer.num_steps={num_steps}", f"output_dir={run.absolute()}"]))
        _, steps = curves(read_metrics(run / "metrics.jsonl"))["time/step_seconds"]
    whole = sum(steps[FIRST:]) + sum(spent["save_rollouts"][FIRST:])
    return {
        "fetching the trainer's logprobs": 100 * sum(spent["trained_logprobs"][FIRST:]) / whole,
        "writing rollouts with the numbers of all tokens": 100 * sum(spent["save_rollouts"][FIRST:]) / whole,
    }


def pairs(folder: Path, num_pairs: int, num_steps: int) -> dict[str, list[dict[str, float]]]:
    """For each side, the mean seconds of a step and CPU seconds of each kind of process in it, run by run.

    The side that goes first changes from pair to pair.
    """
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for pair in range(num_pairs):
        for side in list(SIDES)[:: 1 if pair % 2 == 0 else -1]:
            run = (folder / f"{side}-{pair}").absolute()
            if not (run / SPENT).exists():
                subprocess.run([sys.executable, __file__, str(run), "--side", side, "--steps", str(num_steps)], check=True)
            found[side].append(json.loads((run / SPENT).read_text()))
    return found


def train_side(run: Path, side: str, num_steps: int) -> None:
    """Trains one run of a pair and leaves in its folder what a step took, without the first ones."""
    seen: list[dict[str, float]] = []
    save = Session.save_rollouts

    async def noted(*arguments: Any, **options: Any) -> None:
        await save(*arguments, **options)
        seen.append({"step": time.monotonic(), **cpu_seconds()})

    Session.save_rollouts = noted  # type: ignore[method-assign]
    train(compose_run([*WORDS, *SIDES[side], f"trainer.num_steps={num_steps}", f"output_dir={run}"]))
    first, last = seen[FIRST - 1], seen[-1]
    spent = {name: (last[name] - first[name]) / (len(seen) - FIRST) for name in first}
    (run / SPENT).write_text(json.dumps(spent))


def cpu_seconds() -> dict[str, float]:
    """What this process and the processes of Ray that it began have used so far, by kind."""
    spent = dict.fromkeys(PROCESSES, 0.0)
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            title, times = process.cmdline()[:1], process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        for name, beginning in PROCESSES.items():
            if process == own if not beginning else title and title[0].startswith(beginning):
                spent[name] += times.user + times.system
    return spent


def compare(result: Result, found: dict[str, list[dict[str, float]]]) -> None:
    """What recording everything adds to recording nothing, in the means over runs, and the parts as notes."""
    full, none = (dict(zip(runs[0], zip(*(run.values() for run in runs)))) for runs in found.values())
    step = fmean(none["step"])
    cpu = sum(fmean(full[name]) - fmean(none[name]) for name in PROCESSES)
    result.add("viewer", "everything recorded beside nothing: CPU", ours=100 * cpu / step, reference=3.0, unit="% of a step")
    longer = 100 * (fmean(full["step"]) / step - 1)
    result.add("viewer", "everything recorded beside nothing: wall time", ours=longer, reference=3.0, unit="% of a step")
    result.notes.append(f"beside each other: {len(full['step'])} runs each, mean ± standard deviation over runs, of a step")
    for name in full:
        texts = [
            f"{fmean(values[name]):.3f} ± {stdev(values[name]) if len(values[name]) > 1 else 0:.3f}" for values in (full, none)
        ]
        result.notes.append(
            f"{'wall' if name == 'step' else f'CPU of the {name}'}: {texts[0]} s with everything, {texts[1]} s with nothing"
        )


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
