"""This checkout beside another one, which is what `--against FOLDER` does in the benchmarks that have it.

Both sides run their own program, `python CHECKOUT/tools/bench_….py … --numbers`, in a process of its own with the code of its
checkout, so that nothing but a command line and a line of numbers has to be the same in both. The sides take turns and swap
places from pair to pair: the effect of a busy machine on both cancels out in the ratio of a pair. A ratio above 1 says that this
checkout is better. A row has the median of the ratios and its interval; one whose whole interval lies below `FLOOR` ends the
program with 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy
from bench_rows import ROOT, Result, Row, finish, save

FLOOR = 0.97
"""The interval of a ratio has to reach up to it."""
NUM_PAIRS = 8
NUM_RESAMPLES, CONFIDENCE, SEED = 10_000, 0.95, 0
RUN_SECONDS = 3600
"""Longest run of one side, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One number that a side measured. Example: `Number(value=4364.0, unit="sampled tokens/s")`."""

    value: float
    unit: str
    is_cost: bool = False
    """Less is better."""


Numbers = dict[str, Number]
"""Numbers by name, for example "1M float32, tools: synchronous, by the clock"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The factor by which this checkout is better. Example: `Ratio(middle=0.99, low=0.97, high=1.02)`."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[Number], others: Sequence[Number]) -> "Ratio":
        """The median over pairs, and its 95 % interval: a percentile bootstrap over pairs under a fixed seed."""
        ratios = numpy.array(
            [other.value / our.value if our.is_cost else our.value / other.value for our, other in zip(ours, others, strict=True)]
        )
        drawn = numpy.random.default_rng(SEED).integers(len(ratios), size=(NUM_RESAMPLES, len(ratios)))
        low, high = numpy.quantile(numpy.median(ratios[drawn], axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return cls(middle=float(numpy.median(ratios)), low=float(low), high=float(high))


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--against`, `--pairs` and `--numbers`, the same in every program."""
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="put another checkout of this project beside this one")
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS, help=f"with --against: runs of each side ({NUM_PAIRS})")
    parser.add_argument("--numbers", action="store_true", help="be a side of --against: measure once, print a line of JSON")


def write_numbers(numbers: Numbers) -> None:
    """Prints the numbers of a side."""
    sys.stdout.write(json.dumps({name: asdict(number) for name, number in numbers.items()}) + "\n")


def measured_by(checkout: Path, program: str, words: Sequence[str]) -> Numbers:
    """Runs a side. Raises RuntimeError with the end of its output if it fails."""
    command = [sys.executable, "-W", "ignore", str(checkout / "tools" / program), *words, "--numbers"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=said, text=True, timeout=RUN_SECONDS
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            said.seek(0)
            raise RuntimeError(f"{checkout}: {program} ended with {done.returncode}\n{(said.read() + done.stdout)[-3000:]}")
    return {name: Number(**number) for name, number in json.loads(lines[-1]).items()}


def in_turns(measure: Callable[[Path], Numbers], against: Path, num_pairs: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of this checkout's numbers and the other's; each side is the first of every second pair."""
    for number in range(num_pairs):
        turns = (ROOT, against) if number % 2 == 0 else (against, ROOT)
        first, second = (measure(checkout) for checkout in turns)
        yield (first, second) if number % 2 == 0 else (second, first)


def compare(result: Result, arguments: argparse.Namespace, program: str, words: Sequence[str]) -> None:
    """Measures all pairs, and shows and writes the table after each; ends with 1 if a row is slower than the floor allows."""
    against, benchmark = arguments.against.resolve(), program.removesuffix(".py").removeprefix("bench_")
    result.columns = ("this checkout", "the other")
    notes, pairs = list(result.notes), list[tuple[Numbers, Numbers]]()
    for pair in in_turns(lambda checkout: measured_by(checkout, program, words), against, arguments.pairs):
        pairs.append(pair)
        result.rows = rows_of(benchmark, pairs)
        result.notes = [*notes, *_notes(pairs, against)]
        ratios = ", ".join(f"{row.ratio:.3f}" for row in rows_of(benchmark, [pair]))
        sys.stderr.write(f"pair {len(pairs)} of {arguments.pairs}: {ratios}\n")
        save(result, arguments)
    assert result.rows, "the sides measured nothing in common"
    worse = [row.case for row in result.rows if row.interval is not None and row.interval[1] < FLOOR]
    result.notes += [f"Below {FLOOR}: {case}." for case in worse]
    finish(result, arguments)
    if worse:
        raise SystemExit(1)


def rows_of(benchmark: str, pairs: Sequence[tuple[Numbers, Numbers]]) -> list[Row]:
    """A row for each number that both sides measured in all pairs."""
    rows: list[Row] = []
    for name, first in pairs[0][0].items():
        if any(name not in side for pair in pairs for side in pair):
            continue
        ours, others = ([pair[side][name] for pair in pairs] for side in (0, 1))
        ratio = Ratio.of(ours, others)
        rows.append(
            Row(
                benchmark=benchmark,
                case=name,
                ours=median(number.value for number in ours),
                reference=median(number.value for number in others),
                ratio=ratio.middle,
                interval=(ratio.low, ratio.high),
                unit=f"{first.unit}{'; less is better' if first.is_cost else ''}",
            )
        )
    return rows


def _notes(pairs: list[tuple[Numbers, Numbers]], against: Path) -> list[str]:
    names: list[set[str]] = [set[str]().union(*(pair[side] for pair in pairs)) for side in (0, 1)]
    only = [f"Only one side measured {name}." for name in sorted(names[0] ^ names[1])]
    return [
        f"The other checkout is commit {commit_of(against)}; each side ran {len(pairs)} times, in turns.",
        "A ratio above 1 says that this checkout is better. Numbers are medians; ratios are medians over pairs "
        f"with their {CONFIDENCE:.0%} interval, whose upper end is to be at least {FLOOR}.",
        *only,
    ]


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, in ten digits."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
