"""Measures how long runs take to start: alone, in a sweep, and with the parts that an earlier run has kept.

    python tools/bench_start.py [--points 6] [--steps 3] [--exact] [--beside FOLDER] [--keep FOLDER]
                                [--json PATH] [--markdown PATH]

Short runs of the tiny MemAgent task are made one by one, as separate programs; then the same ones as a sweep, in which each takes
over what the last has left; then two with `cluster.keep_warm`; the second takes over the parts of the first. Phases end with the
lines that a run prints, and their seconds are those at which the lines arrive. With `--exact` all runs are deterministic, which
makes their steps slower, and the weights of each pair are compared byte by byte. With `--beside` the same sweep is also made by
the code of another folder, a checkout of another commit with the same requirements, to see what has become faster since.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from against import commit_of
from bench_rows import ROOT, Result, add_options, finish

WORDS = ("+method=memagent", "evaluation.before=none", "evaluation.rows=[]")
PHASES = {
    "  folder": "imports, composing and checking",
    "waiting for": "Ray",
    "bringing the trainer's": "servers, workers and trainer",
    "servers hold": "the first sync",
    "step 1/": "the first step",
}
"""Beginnings of lines, without their times, each with the phase that ends with such a line."""
LAST_PHASE = "step 1/"
COLD_GOAL_SECONDS, WARM_GOAL_SECONDS, SWEEP_GOAL = 20.0, 5.0, 0.5
POINT = "["
"""The beginning of the line that a sweep prints before each run."""
WEIGHTS = Path("model") / "model.safetensors"


@dataclass(kw_only=True, slots=True)
class Start:
    """Times when the phases of a start ended, in seconds after it began. Example: `Start(marks={"folder": 2.1, "Ray": 6.5})`."""

    began: float
    marks: dict[str, float] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """Notes the end of a phase, if a line says so."""
        text = line.partition(" s  ")[2] or line
        for beginning in PHASES:
            if (text if beginning[0] != " " else line).startswith(beginning) and beginning not in self.marks:
                self.marks[beginning] = time.monotonic() - self.began

    def phases(self) -> dict[str, float]:
        """Seconds of each phase by its name; one that was left out took none."""
        ends = [0.0]
        for beginning in PHASES:
            ends.append(max(ends[-1], self.marks.get(beginning, 0.0)))
        return dict(zip(PHASES.values(), (end - begin for begin, end in pairwise(ends)), strict=True))

    @property
    def seconds(self) -> float:
        """Seconds to the end of the first optimizer step."""
        return self.marks[LAST_PHASE]


def main() -> None:
    """Measures all three and shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=6, help="runs of the sweep, and separate runs")
    parser.add_argument("--steps", type=int, default=3, help="steps of each run")
    parser.add_argument("--exact", action="store_true", help="deterministic runs, whose weights are compared")
    parser.add_argument("--beside", type=Path, help="checkout of another commit, whose code makes the same sweep")
    parser.add_argument("--keep", type=Path, help="folder of the runs, which is removed otherwise")
    add_options(parser)
    given = parser.parse_args()
    result = Result(title="The start of a run", columns=("measured", "reference"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        measure(result, folder, num_points=given.points, num_steps=given.steps, exact=given.exact, beside=given.beside)
    finish(result, given)


def measure(result: Result, folder: Path, *, num_points: int, num_steps: int, exact: bool, beside: Path | None = None) -> None:
    """Makes all runs and adds the rows."""
    words = [*WORDS, f"trainer.num_steps={num_steps}", *(["deterministic=true"] if exact else [])]
    rates = [f"{1e-4 * (point + 1):g}" for point in range(num_points)]
    began, cold = time.monotonic(), []
    for number, rate in enumerate(rates):
        cold += made([*words, f"trainer.lr={rate}", f"output_dir={folder / 'alone' / str(number)}"])
    alone_seconds, began = time.monotonic() - began, time.monotonic()
    sweep = [*words, f"trainer.lr={','.join(rates)}", "--multirun"]
    warm = made([*sweep, f"output_dir={folder / 'sweep'}"])
    sweep_seconds, began = time.monotonic() - began, time.monotonic()
    if beside is not None:
        made([*sweep, f"output_dir={folder / 'beside'}"], root=beside.absolute())
    other_seconds = time.monotonic() - began
    kept = []
    for name in ("first", "second"):
        kept += made([*words, "cluster.keep_warm=60", f"output_dir={folder / 'kept' / name}"])
    subprocess.run([sys.executable, "-m", "vime.run", "+method=memagent", "mode=plan", "cluster.keep_warm=0"], **QUIET)
    show(result, cold, warm[1:], kept[1])
    case = f"{num_points} runs of {num_steps} steps: as a sweep, beside one by one"
    result.add("sweep", case, ours=sweep_seconds, reference=alone_seconds, unit="s")
    if beside is not None:
        case = f"{num_points} runs of {num_steps} steps: as a sweep, beside the sweep by commit {commit_of(beside)}"
        result.add("sweep", case, ours=sweep_seconds, reference=other_seconds, unit="s")
    if exact:
        sides = [[folder / side / str(number) / WEIGHTS for number in range(num_points)] for side in ("alone", "sweep")]
        num_equal = sum(one.read_bytes() == other.read_bytes() for one, other in zip(*sides, strict=True))
        result.notes.append(
            f"{num_equal} of {num_points} runs of the sweep end with the very weights of the same run made alone."
        )
    goals = f"{COLD_GOAL_SECONDS:.0f} s cold, {WARM_GOAL_SECONDS:.0f} s warm, a sweep in {SWEEP_GOAL} of the time"
    result.notes.append(f"Medians of {len(cold)} runs made alone and {len(warm) - 1} of the sweep. Goals: {goals}.")


QUIET = {"cwd": ROOT, "check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def made(words: list[str], *, root: Path = ROOT) -> list[Start]:
    """Runs the program with the code of `root`; returns the starts of its runs, without the time before the first of a sweep."""
    starts = [Start(began=time.monotonic())]
    command = [sys.executable, "-m", "vime.run", *words]
    code = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))  # for the programs that a run starts
    environment = os.environ | {"PYTHONPATH": code}
    with subprocess.Popen(
        command, cwd=root, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as program:
        assert program.stdout is not None
        lines: list[str] = []
        for line in program.stdout:
            lines.append(line)
            if line.startswith(POINT):
                starts.append(Start(began=time.monotonic()))
            starts[-1].note(line)
    if program.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {program.returncode}:\n{''.join(lines[-30:])}")
    return starts[1:] or starts


def show(result: Result, cold: list[Start], warm: list[Start], kept: Start) -> None:
    """Rows for the whole start and its phases."""
    cold_seconds, warm_seconds = (median(start.seconds for start in starts) for starts in (cold, warm))
    add = result.add
    add("start", "first optimizer step, cold, beside the goal", ours=cold_seconds, reference=COLD_GOAL_SECONDS, unit="s")
    add(
        "start",
        "first optimizer step, warm in a sweep, beside the goal",
        ours=warm_seconds,
        reference=WARM_GOAL_SECONDS,
        unit="s",
    )
    add(
        "start",
        "first optimizer step, warm by keep_warm, beside the goal",
        ours=kept.seconds,
        reference=WARM_GOAL_SECONDS,
        unit="s",
    )
    for phase in PHASES.values():
        one, other = (median(start.phases()[phase] for start in starts) for starts in (warm, cold))
        add("phases", f"{phase}: warm in a sweep, beside cold", ours=one, reference=other, unit="s")


if __name__ == "__main__":
    main()
