"""Measures the cost of the viewer: an open page while nothing changes, and the records that a run writes for it.

    python tools/bench_viewer.py RUN [--seconds 60] [--pairs 3] [--steps 12] [--keep FOLDER] [--json PATH]

RUN is a folder that the viewer shows. For the second part a small run is trained on real servers, alternately with everything
recorded and with nothing. Their steps are compared, and for runs with everything the driver's time for fetching the trainer's
logprobs and for writing rollouts is measured. `--keep` names the folder of these runs; runs that have ended there are not
repeated.
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
from statistics import fmean, pstdev
from typing import Any

import psutil
from bench_rows import Result, add_options, finish

from vime.loop import train
from vime.preflight.compose import compose_run
from vime.run_output import RunOutput
from vime.trainer.group import TrainerGroup

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
"""Settings for the records of the two runs of a pair; with `trace_share=1` the timelines of all rollouts as well."""
PROCESSES = {"driver": "", "rollout workers": "ray::RolloutWorker", "trainer": "ray::TrainerRank"}
"""Processes whose CPU time is taken, by the beginning of their command lines."""
FETCHING, WRITING = "fetching the trainer's logprobs", "writing rollouts with the numbers of all tokens"
PARTS = (FETCHING, WRITING)
SPENT = "spent.json"


def main() -> None:
    """Measures both parts and shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each page stays open; 0 opens none")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs that are trained; 0 trains none")
    parser.add_argument("--steps", type=int, default=12, help="steps of each of these runs")
    parser.add_argument("--keep", type=Path, help="the folder of these runs, which is removed otherwise")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    add_options(parser)
    given = parser.parse_args()
    if given.side:
        train_side(given.run, given.side, given.steps)
        return
    result = Result(title="What the viewer costs", columns=("measured", "limit"))
    for page, share in (idle(given.run, given.seconds) if given.seconds else {}).items():
        result.add(
            "viewer", f"server with the page `{page}` open while nothing changes", ours=share, reference=1.0, unit="% of a core"
        )
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


def pairs(folder: Path, num_pairs: int, num_steps: int) -> dict[str, list[dict[str, float]]]:
    """The mean seconds of a step, CPU seconds of each kind of process in it, and seconds of its parts, for each side and run.

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
    """Trains one run of a pair and leaves the times of its steps, without the first ones, in its folder."""
    seen: list[dict[str, float]] = []
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    TrainerGroup.read = timed(TrainerGroup.read, parts[FETCHING])  # type: ignore[method-assign]
    save = timed(RunOutput.save_rollouts, parts[WRITING])

    async def noted(*arguments: Any, **options: Any) -> None:
        await save(*arguments, **options)
        seen.append({"step": time.monotonic(), **cpu_seconds()})

    RunOutput.save_rollouts = noted  # type: ignore[method-assign]
    train(compose_run([*WORDS, *SIDES[side], f"trainer.num_steps={num_steps}", f"output_dir={run}"]))
    first, last = seen[FIRST - 1], seen[-1]
    spent = {name: (last[name] - first[name]) / (len(seen) - FIRST) for name in first}
    (run / SPENT).write_text(json.dumps(spent | {part: fmean(values[FIRST:]) for part, values in parts.items()}))


def cpu_seconds() -> dict[str, float]:
    """CPU seconds that this process and the processes of Ray that it began have used so far, by kind."""
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
    """The parts of a step that record, and the cost of recording everything beside nothing, in the means over runs."""
    full, none = ({name: [run[name] for run in runs] for name in runs[0]} for runs in found.values())
    for part in PARTS:
        result.add("viewer", part, ours=100 * fmean(full[part]) / fmean(full["step"]), reference=3.0, unit="% of a step")
    step = fmean(none["step"])
    cpu = sum(fmean(full[name]) - fmean(none[name]) for name in PROCESSES)
    result.add("viewer", "everything recorded beside nothing: CPU", ours=100 * cpu / step, reference=3.0, unit="% of a step")
    longer = 100 * (fmean(full["step"]) / step - 1)
    result.add("viewer", "everything recorded beside nothing: wall time", ours=longer, reference=3.0, unit="% of a step")
    result.notes.append(
        f"everything recorded beside nothing: {len(full['step'])} runs each; of a step, mean ± deviation over runs"
    )
    for name, about in {"step": "wall time", **{name: f"CPU of the {name}" for name in PROCESSES}}.items():
        texts = [f"{fmean(side[name]):.3f} ± {pstdev(side[name]):.3f} s" for side in (full, none)]
        result.notes.append(f"{about}: {texts[0]} with everything, {texts[1]} with nothing")


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
