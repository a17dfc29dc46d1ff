"""Steps per hour with a long tail: synchronous, one step off and asynchronous, each beside the bound of an ideal machine.

    python tools/bench_async.py [--steps 24] [--staleness 8] [--json PATH] [--markdown PATH]

Real runs of the tiny MemAgent task with every part real, whose agents call a tool of log-normal time (`tools/long_tail.py`). The
bound of a mode is a simulation (`tools/async_bound.py`) of the same steps with the same tool times, batches, `max_staleness` and
rules of admission and resampling, in which nothing costs time but tools, training and the processor's work: training (with its
sync) as long as in the synchronous run, where nothing runs beside it, on all cores; a rollout's tokens as much of one core as in
the mode that needs least; of two orders of work the better one. A second bound knows no rules and no tools: the least processor
time of a step of any mode, divided by the cores. The rounds of the modes alternate, so that a busy machine slows all alike.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
from async_bound import Run, Simulation
from bench_rows import ROOT, Result, add_options, finish
from long_tail import tool_seconds

from vime.types import rollout_id_of

NUM_PROMPTS, NUM_SAMPLES = 8, 4
RESAMPLED = "rollout/num_rollouts_resampled"
LONG = 500
"""Number of simulated steps that show the preference of resampling."""
WARM_UP = 3
"""Steps left out: the first compile, and until the pipeline is full nothing waits as it will."""


@dataclass(kw_only=True, slots=True)
class Mode:
    """One way of training, and the metrics of its steps. Example: `Mode(name="one step off", staleness=1)`."""

    name: str
    staleness: int
    rows: list[dict[str, float]] = field(default_factory=list)
    processor_seconds: float = 0.0
    """CPU seconds of the run's processes, in the measured steps."""

    def mean(self, name: str) -> float:
        """Over all measured steps; a metric that a step lacks is 0 there."""
        return fmean(row.get(name, 0.0) for row in self.rows)

    @property
    def work(self) -> float:
        """Processor seconds of a step."""
        return self.processor_seconds / len(self.rows)

    @property
    def num_sampled(self) -> float:
        """Rollouts of a step, with those that are sampled again."""
        return NUM_PROMPTS * NUM_SAMPLES + self.mean(RESAMPLED)

    @property
    def steps_per_hour(self) -> float:
        """Steps per hour, from whole steps without evaluation and checkpoints."""
        return 3600 / self.mean("time/step_seconds")


class ProcessorClock:
    """The processor seconds that a process and its descendants had used, at any time while it is entered."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._used: dict[int, float] = {}
        """Processor seconds by process, including processes that have ended."""
        self._samples: list[tuple[float, float]] = [(time.time(), 0.0)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "ProcessorClock":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, start: float, end: float) -> float:
        """Processor seconds from one time to another."""
        times, values = zip(*self._samples, strict=True)
        first, last = np.interp([start, end], times, values)
        return float(last - first)

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            with suppress(psutil.NoSuchProcess):
                for process in [self._process, *self._process.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        self._used[process.pid] = times.user + times.system
            self._samples.append((time.time(), sum(self._used.values())))


def measure(mode: Mode, *, steps: int, folder: Path, environment: dict[str, str]) -> None:
    """One run; its steps after the first few are added to the mode's."""
    words = [
        "+method=memagent",
        "evaluation.rows=[]",
        "method.generate=tools/long_tail.py:generate",
        f"trainer.num_steps={steps + mode.staleness}",  # what nobody would train is not started, so the last steps are unlike
        f"trainer.save_every={steps + mode.staleness}",
        f"rollout.num_prompts={NUM_PROMPTS}",
        f"rollout.num_samples_per_prompt={NUM_SAMPLES}",
        f"rollout.max_staleness={mode.staleness}",
        f"output_dir={folder}",
    ]
    command = [sys.executable, "-m", "vime.run", *words]
    run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr)
    with run, ProcessorClock(run.pid) as clock:
        run.wait()
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, command)
    lines: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in lines if "time/step_seconds" in row][:steps]
    mode.rows += rows[WARM_UP:]
    mode.processor_seconds += clock.between(rows[WARM_UP - 1]["time"], rows[-1]["time"])


def simulated(modes: list[Mode], mode: Mode, options: argparse.Namespace) -> Run:
    """The mode's run on an ideal machine; rollouts that are sampled again call a tool with the same time."""
    synchronous, num_cores = modes[0], len(os.sched_getaffinity(0))
    training = synchronous.mean("time/training_seconds") + synchronous.mean("time/sync_seconds")

    def tool(slot: int, member: int, attempt: int) -> float:
        identity = rollout_id_of(slot, member)
        return tool_seconds(identity, median_seconds=options.median_seconds, sigma=options.sigma)

    return Run(
        num_steps=options.steps + mode.staleness,
        num_prompts=NUM_PROMPTS,
        num_samples=NUM_SAMPLES,
        max_staleness=mode.staleness,
        num_cores=num_cores,
        training_seconds=training,
        rollout_seconds=min((each.work - training * num_cores) / each.num_sampled for each in modes),
        tool_seconds=tool,
    )


def ideal_seconds(run: Run, *, num_steps: int) -> float:
    """Seconds of a measured step on the ideal machine, with the better one of two orders of work."""
    ends = [Simulation(replace(run, oldest_first=oldest_first)).end() for oldest_first in (True, False)]
    return min(fmean(ended.step_seconds[WARM_UP:num_steps]) for ended in ends)


def preference(run: Run, options: argparse.Namespace) -> str:
    """A sentence on whether long or short rollouts are preferred if a rollout sampled again calls a tool of another time."""

    def tool(slot: int, member: int, attempt: int) -> float:
        identity = rollout_id_of(slot, member) + attempt * NUM_SAMPLES
        return tool_seconds(identity, median_seconds=options.median_seconds, sigma=options.sigma)

    fresh = replace(run, num_steps=LONG, tool_seconds=tool)
    resampled, waited = Simulation(fresh).end(), Simulation(replace(fresh, resamples=False)).end()
    return (
        f"in {LONG} simulated steps in which what is sampled again has a tool of another time, {resampled.num_resampled:,} "
        f"rollouts are sampled again, and the tools of those that are trained take {fmean(resampled.tool_seconds):.3f} s on "
        f"average, {fmean(waited.tool_seconds):.3f} s if late groups are waited for"
    )


def fill(result: Result, modes: list[Mode], options: argparse.Namespace) -> None:
    """Each mode beside the bounds, and where the time of its steps went."""
    num_cores = len(os.sched_getaffinity(0))
    work = min(mode.work for mode in modes)
    notes: list[str] = []
    for mode in modes:
        run = simulated(modes, mode, options)
        seconds = ideal_seconds(run, num_steps=options.steps)
        waited = ideal_seconds(replace(run, resamples=False), num_steps=options.steps)
        case = f"{mode.name} (max_staleness={mode.staleness}); bound simulated"
        result.add("async", case, ours=mode.steps_per_hour, reference=3600 / seconds, unit="steps/h")
        notes.append(
            f"{describe(mode, modes[0])}; a step of the ideal machine takes {seconds:.2f} s, {waited:.2f} s if it waits for late "
            f"groups as they are; {preference(run, options)}"
        )
    for mode in modes:
        case = f"{mode.name} (max_staleness={mode.staleness}); bound of the cores, with any policy"
        result.add("async", case, ours=mode.steps_per_hour, reference=3600 * num_cores / work, unit="steps/h")
    training = modes[0].mean("time/training_seconds") + modes[0].mean("time/sync_seconds")
    result.notes.append(
        f"bounds: training with sync {training:.2f} s; the least processor time of a step in any mode, {work:.2f} s, on "
        f"{num_cores} cores; simulated, a step waits for nothing but tools, training and cores"
    )
    result.notes += notes


def describe(mode: Mode, synchronous: Mode) -> str:
    """Describes where the time of a mode's steps went, and the age of its tokens."""
    parts = {name: mode.mean(f"time/{name}_seconds") for name in ("generation", "training", "sync")}
    step = mode.mean("time/step_seconds")
    parts["all else"] = step - sum(parts.values())
    waited = [row["time/generation_seconds"] for row in mode.rows if row.get("time/generation_seconds", 0.0) > 1.0]
    slower = mode.mean("time/training_seconds") / synchronous.mean("time/training_seconds")
    oldest = max(row.get("rollout/staleness_max", 0.0) for row in mode.rows)
    return (
        f"{mode.name}: {len(mode.rows)} steps of {step:.2f} s, {mode.work:.2f} s of processor time: "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
        + f"; {len(waited)} of them waited more than a second for a batch, {sum(waited):.0f} s in all"
        + f"; training took {slower:.2f} times as long as alone"
        + f"; tokens were {mode.mean('rollout/staleness_mean'):.1f} versions old, at most {oldest:.0f}"
        + f"; {sum(row.get(RESAMPLED, 0.0) for row in mode.rows):.0f} rollouts were sampled again"
    )


def main() -> None:
    """Runs the modes in rounds and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--staleness", type=int, default=8, help="of the asynchronous mode")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--median-seconds", type=float, default=0.5, help="of the tool")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the logarithm of the tool's time")
    add_options(parser)
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps {options.steps}: the first {WARM_UP} are left out, give more")
    environment = {"VIME_TAIL_MEDIAN_SECONDS": str(options.median_seconds), "VIME_TAIL_SIGMA": str(options.sigma)}
    modes = [
        Mode(name="synchronous", staleness=0),
        Mode(name="one step off", staleness=1),
        Mode(name="asynchronous", staleness=options.staleness),
    ]
    result = Result(title="Steps per hour with a long tail", columns=("measured", "bound"))
    with tempfile.TemporaryDirectory(prefix="vime-async-") as folder:
        for number in range(options.rounds):
            for mode in modes if number % 2 == 0 else reversed(modes):
                place = Path(folder) / f"{mode.staleness}-{number}"
                measure(mode, steps=options.steps, folder=place, environment=environment)
    fill(result, modes, options)
    finish(result, options)


if __name__ == "__main__":
    main()
