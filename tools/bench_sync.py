"""A weight sync beside a plain copy of the same bytes: how long servers pause, and how long the whole of it takes.

    python tools/bench_sync.py [--cases 1M 35M 0.5B] [--servers 1 2] [--precision bfloat16] [--repeats 5]
                               [--json PATH] [--markdown PATH]

The whole system (Ray, vLLM servers, a worker, the trainer) syncs a random model that gets no requests meanwhile. The copy is one
of host memory, by one thread, and alternates with the syncs. A row holds medians.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import torch
from bench_rows import Result, add_options, finish, save
from step_case import SINGLE, draw_case, write_case
from step_ours import running
from trainer_case import SHAPES

from vime.inside_vllm.shadow import RESERVE, ROOM
from vime.system import Training

UNIT = "ms; less is better"
GOAL = 3.0
"""Copies of the bytes that a pause may last."""
CASES = [name for name in SHAPES if name != "7B"]
PARTS = {
    "sync/export_seconds": "export",
    "sync/check_seconds": "mapping, hashing and loading beside the old weights",
    "sync/pause_seconds": "pause",
    "sync/proof_seconds": "proof",
    "probe/seconds": "probe",
}
"""Metrics of a sync and their names in a note."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """One sync and a copy of the same number of bytes, in seconds.

    Example: `Sync(whole=0.9, copy=0.03, metrics={"sync/pause_seconds": 0.2, …}, free=1.5e10)`.
    """

    whole: float
    copy: float
    metrics: dict[str, float]
    free: float
    """Bytes of memory that were available before it."""


def main() -> None:
    """Measures every case, prints the table, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["1M", "35M", "0.5B"])
    parser.add_argument("--servers", nargs="+", type=int, default=[1, 2], help="numbers of servers (1 2)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5, help="syncs of each case, after one that does not count (5)")
    add_options(parser)
    options = parser.parse_args()
    result = Result(title="A weight sync", columns=("ours", "plain copy"))
    for size in options.cases:
        for num_servers in options.servers:
            with tempfile.TemporaryDirectory(prefix="vime-sync-") as folder:
                syncs = asyncio.run(measure(size, num_servers, options, Path(folder)))
            report(result, f"{size} {options.precision}, {num_servers} server{'s' * (num_servers > 1)}", syncs, num_servers)
            save(result, options)
    finish(result, options)


async def measure(size: str, num_servers: int, options: argparse.Namespace, folder: Path) -> list[Sync]:
    """Syncs of one system."""
    case = draw_case(size, SINGLE, num_prompts=1, num_samples=2, num_steps=1, tokens=8)
    checkpoint = folder / size
    checkpoint.mkdir()
    write_case(case, checkpoint)
    words = [f"serving.models.actor.num_replicas={num_servers}"]
    async with running(case, checkpoint, precision=options.precision, not_ours=(), words=words) as ours:
        return [await one(ours.system, version) for version in range(1, options.repeats + 2)][1:]


async def one(system: Training, version: int) -> Sync:
    """One sync, with its probe; then a copy of the same number of bytes."""
    free = float(psutil.virtual_memory().available)
    started = time.perf_counter()
    metrics = await system.sync(version)
    metrics |= await system.compared()
    whole = time.perf_counter() - started
    source = torch.zeros(int(metrics["sync/bytes"]), dtype=torch.uint8)
    target = torch.ones_like(source)
    started = time.perf_counter()
    target.copy_(source)
    return Sync(whole=whole, copy=time.perf_counter() - started, metrics=metrics, free=free)


def report(result: Result, name: str, syncs: list[Sync], num_servers: int) -> None:
    """Adds the rows of a case."""
    copy = 1000 * median(sync.copy for sync in syncs)
    found = {key: 1000 * median(sync.metrics.get(key, 0.0) for sync in syncs) for key in PARTS}
    whole = 1000 * median(sync.whole for sync in syncs)
    result.add("sync", f"{name}: pause", ours=found["sync/pause_seconds"], reference=copy, unit=UNIT)
    result.add("sync", f"{name}: whole sync, with its probe", ours=whole, reference=copy, unit=UNIT)
    parts = ", ".join(f"{called} {found[key]:.0f} ms" for key, called in PARTS.items())
    result.notes.append(f"{name}, {syncs[0].metrics['sync/bytes'] / 1e6:.0f} MB: {parts}")
    if found["sync/pause_seconds"] > GOAL * copy:
        result.notes.append(shortfall(name, syncs, copy, num_servers))


def shortfall(name: str, syncs: list[Sync], copy: float, num_servers: int) -> str:
    """The reason why a pause is longer than its goal, in figures of this run; `copy` is in ms."""
    pause, products = (1000 * median(sync.metrics[f"sync/{part}_seconds"] for sync in syncs) for part in ("pause", "products"))
    missed = f"{name}: the pause is {pause / copy:.1f} copies, the goal {GOAL:.0f} ({GOAL * copy:.2f} ms)."
    if products:
        rest = pause - products
        return (
            f"{missed} Cause: nothing is copied in it; products of the proof take {products:.2f} ms, and one message, at which "
            f"the engine exchanges the layers and clears its cache, {rest:.2f} ms. Bound: without any "
            f"proof it would be {rest / copy:.1f} copies."
        )
    free, total = min(sync.free for sync in syncs), psutil.virtual_memory().total
    needed = ROOM * num_servers * syncs[0].metrics["sync/bytes"] + RESERVE * total
    return (
        f"{missed} Cause: memory has no room for a second set of weights in {num_servers} servers ({free / 1e9:.1f} GB available "
        f"before the sync, which itself writes {syncs[0].metrics['sync/bytes'] / 1e9:.1f} GB; {needed / 1e9:.1f} GB needed with "
        f"the reserve), so weights are loaded in the pause. Bound: with room it is that of one server."
    )


if __name__ == "__main__":
    main()
