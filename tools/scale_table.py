"""The table of `bench_scale.py --batch`: this checkout and another take turns, and the middle of each counts."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench_rows import ROOT, Result

BATCH_ROLLOUTS, BATCH_TOKENS = 16, 32_768


def batch_side(checkout: Path, num_prompts: int, num_ranks: int) -> dict[str, float]:
    """Runs `scale_batch.py` on the code of a checkout."""
    sizes = [num_prompts, BATCH_ROLLOUTS, BATCH_TOKENS, num_ranks]
    command = [sys.executable, str(ROOT / "tools" / "scale_batch.py"), *map(str, sizes)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment).stdout
    return json.loads(answer.splitlines()[-1])


def compare_batches(arguments: argparse.Namespace) -> Result:
    """Both sides take turns `--rounds` times; the table has the middle of each measure."""
    ours: list[dict[str, float]] = []
    others: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        ours.append(batch_side(ROOT, arguments.batch, arguments.ranks))
        if arguments.against:
            others.append(batch_side(arguments.against, arguments.batch, arguments.ranks))
    result = Result(title="A batch's tokens in the driver", columns=("ours", "the other checkout" if others else "ours"))
    _add_batch(result, ours, others or ours)
    if arguments.alone:
        alone = [batch_side(ROOT, arguments.alone, arguments.ranks)]
        _add_batch(result, alone, alone)
        result.notes.append(f"Batches of {alone[0]['tokens'] / 1e6:.1f} M tokens ran once, here alone: their ratio says nothing.")
    if arguments.against:
        result.notes.append(
            f"The other checkout is commit {_commit_of(arguments.against)}; each side ran {arguments.rounds} times, in turns."
        )
    result.notes += [
        "Seconds by the clock: from the first group's arrival to a journal that is written; advantages, weights and metrics; "
        "packing and the way to the ranks until each has its rows. Rollouts are made beforehand.",
        "Bytes are of memory that the driver's process has for itself; Ray's object store is shared memory and not among them.",
    ]
    return result


def _add_batch(result: Result, ours: list[dict[str, float]], others: list[dict[str, float]]) -> None:
    def middle(side: list[dict[str, float]], *names: str) -> float:
        return statistics.median(sum(found[name] for name in names) for found in side)

    clock = ("generation_seconds", "update_seconds", "hand_over_seconds")
    for name, unit, keys in (
        ("kept until training", "bytes per token", ("held_bytes",)),
        ("most at any time", "bytes per token", ("peak_bytes",)),
        ("all", "seconds", clock),
        ("producer, buffer, journal", "seconds", clock[:1]),
        ("advantages, weights, metrics", "seconds", clock[1:2]),
        ("packing and hand-over", "seconds", clock[2:]),
        ("all, driver alone", "seconds of CPU time", ("driver_cpu_seconds",)),
        ("all, driver and ranks", "seconds of CPU time", ("driver_cpu_seconds", "rank_cpu_seconds")),
        ("longest block of the event loop", "seconds", ("blocked_seconds",)),
    ):
        case = f"{ours[0]['tokens'] / 1e6:.1f} M tokens: {name}"
        result.add("scale", case, ours=middle(ours, *keys), reference=middle(others, *keys), unit=unit)


def _commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
