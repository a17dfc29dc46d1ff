"""Steps per hour with a long tail: synchronous, one step off and asynchronous, beside what the machine could do at best.

    python tools/bench_async.py [--steps 16] [--staleness 8] [--json PATH] [--markdown PATH]

Real runs of the tiny MemAgent task with every part real, whose agents call a tool of log-normal time (`tools/long_tail.py`). The
bound is one step per max(generation, training): training (with its sync) as long as in the synchronous run, where nothing runs
beside it; generation as long as a batch's rollouts take if as many groups are in flight as the staleness admits. The rounds of
the modes alternate, so that a busy machine slows all of them alike.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

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

    def mean(self, name: str) -> float:
        """Over all measured steps; a metric that a step lacks is 0 there."""
        return fmean(row.get(name, 0.0) for row in self.rows)

    @property
    def steps_per_hour(self) -> float:
        """From whole steps, evaluation and checkpoints left out."""
        return 3600 / self.mean("time/step_seconds")


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
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    mode.rows += [row for row in rows if "time/step_seconds" in row][WARM_UP:steps]


def bound_seconds(modes: list[Mode]) -> tuple[float, float]:
    """Seconds of a step's generation and training, each as if the other were free."""
    synchronous, last = modes[0], modes[-1]
    training = synchronous.mean("time/training_seconds") + synchronous.mean("time/sync_seconds")
    group_seconds = synchronous.mean("time/generation_seconds")  # a synchronous step waits for its slowest group
    return group_seconds / (last.staleness + 1), training


def result_of(modes: list[Mode]) -> Result:
    """Each mode beside the bound, and where the time of its steps went."""
    generation, training = bound_seconds(modes)
    bound = 3600 / max(generation, training)
    result = Result(title="Steps per hour with a long tail", columns=("measured", "bound"))
    for mode in modes:
        result.add(
            "async", f"{mode.name} (max_staleness={mode.staleness})", ours=mode.steps_per_hour, reference=bound, unit="steps/h"
        )
    result.notes.append(
        f"bound: max of generation {generation:.2f} s (the synchronous {generation * (modes[-1].staleness + 1):.2f} s, "
        f"{modes[-1].staleness + 1} batches at a time) and training with sync {training:.2f} s"
    )
    for mode in modes:
        names = ("generation", "training", "sync", "waiting")
        shares = ", ".join(f"{name} {100 * mode.mean(f'time/{name}_share'):.0f} %" for name in names)
        slower = mode.mean("time/training_seconds") / modes[0].mean("time/training_seconds")
        oldest = max(row.get("rollout/staleness_max", 0.0) for row in mode.rows)
        result.notes.append(
            f"{mode.name}: {len(mode.rows)} steps of {mode.mean('time/step_seconds'):.2f} s: {shares}; "
            f"training took {slower:.2f} times as long as alone; "
            f"tokens were {mode.mean('rollout/staleness_mean'):.1f} versions old, at most {oldest:.0f}"
        )
    return result


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
    with tempfile.TemporaryDirectory(prefix="vime-async-") as folder:
        for number in range(options.rounds):
            for mode in modes if number % 2 == 0 else reversed(modes):
                place = Path(folder) / f"{mode.staleness}-{number}"
                measure(mode, steps=options.steps, folder=place, environment=environment)
    finish(result_of(modes), options)


if __name__ == "__main__":
    main()
