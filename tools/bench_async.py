"""Steps per hour with a long tail: synchronous, one step off and asynchronous, beside what the machine could do at best.

    python tools/bench_async.py [--steps 16] [--staleness 8] [--json PATH] [--markdown PATH]

Real runs of the tiny MemAgent task with every part real, whose agents call a tool of log-normal time (`tools/long_tail.py`). The
bound is one step per max(generation, training): training (with its sync) as long as in the synchronous run, where nothing runs
beside it; generation as long as a batch's rollouts take if as many groups are in flight as the staleness admits. Where servers
and trainer share cores, they also share what a step computes: the second bound is the least processor time of a step, of
any mode, by the number of cores. The rounds of the modes alternate, so that a busy machine slows all of them alike.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
from bench_rows import ROOT, Result, add_options, finish

NUM_PROMPTS, NUM_SAMPLES = 8, 4
WARM_UP = 3
"""Steps left out: the first compile, and until the pipeline is full nothing waits as it will."""


@dataclass(kw_only=True, slots=True)
class Mode:
    """One way of training, and the metrics of its steps. Example: `Mode(name="one step off", staleness=1)`."""

    name: str
    staleness: int
    rows: list[dict[str, float]] = field(default_factory=list)
    busy_seconds: float = 0.0
    """Of all cores together, in the measured steps."""

    def mean(self, name: str) -> float:
        """Over all measured steps; a metric that a step lacks is 0 there."""
        return fmean(row.get(name, 0.0) for row in self.rows)

    @property
    def work(self) -> float:
        """Processor seconds of a step."""
        return self.busy_seconds / len(self.rows)

    @property
    def steps_per_hour(self) -> float:
        """From whole steps, evaluation and checkpoints left out."""
        return 3600 / self.mean("time/step_seconds")


class BusyClock:
    """The seconds that this machine's cores were busy, all together, at any time while it is entered."""

    def __enter__(self) -> "BusyClock":
        self._samples: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, start: float, end: float) -> float:
        """Busy core-seconds from one time to another."""
        times, values = zip(*self._samples, strict=True)
        first, last = np.interp([start, end], times, values)
        return float(last - first)

    def _sample(self) -> None:
        while not self._ended.wait(0.2):
            cpu = psutil.cpu_times()
            self._samples.append((time.time(), sum(cpu) - cpu.idle - cpu.iowait - cpu.guest))


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
    with BusyClock() as clock:
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr)
    lines: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in lines if "time/step_seconds" in row][:steps]
    mode.rows += rows[WARM_UP:]
    mode.busy_seconds += clock.between(rows[WARM_UP - 1]["time"], rows[-1]["time"])


def bound_seconds(modes: list[Mode]) -> tuple[float, float]:
    """Seconds of a step's generation and training, each as if the other were free."""
    synchronous, last = modes[0], modes[-1]
    training = synchronous.mean("time/training_seconds") + synchronous.mean("time/sync_seconds")
    group_seconds = synchronous.mean("time/generation_seconds")  # a synchronous step waits for its slowest group
    return group_seconds / (last.staleness + 1), training


def fill(result: Result, modes: list[Mode]) -> None:
    """Each mode beside the bounds, and where the time of its steps went."""
    generation, training = bound_seconds(modes)
    num_cores = len(os.sched_getaffinity(0))
    work = min(mode.work for mode in modes)
    shared = work / num_cores
    bounds = {
        "each as if the other were free": max(generation, training),
        "on shared cores": max(generation, training, shared),
    }
    for name, seconds in bounds.items():
        for mode in modes:
            case = f"{mode.name} (max_staleness={mode.staleness}); bound {name}"
            result.add("async", case, ours=mode.steps_per_hour, reference=3600 / seconds, unit="steps/h")
    result.notes.append(
        f"bounds: generation {generation:.2f} s (the synchronous {generation * (modes[-1].staleness + 1):.2f} s, "
        f"{modes[-1].staleness + 1} batches at a time); training with sync {training:.2f} s; on shared cores "
        f"{shared:.2f} s, the least processor time of a step in any mode, {work:.2f} s, by {num_cores}"
    )
    result.notes += [describe(mode, modes[0]) for mode in modes]


def describe(mode: Mode, synchronous: Mode) -> str:
    """Where the time of a mode's steps went, and what its tokens' age was."""
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
        + (" (for a group that would be too old in the next)" if mode.staleness > 1 else "")
        + f"; training took {slower:.2f} times as long as alone"
        + f"; tokens were {mode.mean('rollout/staleness_mean'):.1f} versions old, at most {oldest:.0f}"
    )


def main() -> None:
    """Runs the modes in rounds and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
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
    fill(result, modes)
    finish(result, options)


if __name__ == "__main__":
    main()
