"""Weight syncs that send differences from the version before, beside syncs of whole versions: bytes and seconds.

    python tools/bench_deltas.py [--cases 1M 35M] [--lr 1e-6] [--precision bfloat16] [--steps 6] [--json PATH] [--markdown PATH]

Two whole systems (Ray, a vLLM server, a worker, the trainer) make the same training steps of a random model, one after the other.
Each version is digested, proven and probed on the server as in every run. Rows hold medians over the steps after the first.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median

from bench_rows import Result, add_options, finish, save
from step_case import SINGLE, draw_case, write_case
from step_ours import running
from trainer_case import SHAPES

CASES = [name for name in SHAPES if name != "7B"]
NUM_DELTAS = "cluster.num_delta_syncs=1000"
UNITS = {"sync/bytes": "bytes", "sync/seconds": "ms", "sync/export_seconds": "ms", "sync/pause_seconds": "ms"}
NAMES = {
    "sync/bytes": "bytes of a sync",
    "sync/seconds": "whole sync",
    "sync/export_seconds": "export of it",
    "sync/pause_seconds": "pause of the server",
}


async def measure(size: str, words: list[str], options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The metrics of the steps after the first. Raises AssertionError if a server could not use a difference."""
    case = draw_case(size, SINGLE, num_prompts=4, num_samples=4, num_steps=options.steps + 1, tokens=32)
    checkpoint = folder / size
    checkpoint.mkdir(parents=True)
    write_case(case, checkpoint)
    given = [f"trainer.lr={options.lr}", *words]
    async with running(case, checkpoint, precision=options.precision, not_ours=(), words=given) as ours:
        await ours.begin(case, staleness=0)
        found = [(await ours.step()).metrics for _ in range(options.steps + 1)][1:]
    assert not any(metrics["sync/num_lacking_servers"] for metrics in found), "a server could not use a difference"
    return found


def main() -> None:
    """Measures every case, prints the table, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["1M", "35M"])
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=6, help="steps of each system, after one that does not count (6)")
    add_options(parser)
    options = parser.parse_args()
    result = Result(title="Weight syncs by differences", columns=("differences", "whole versions"))
    result.notes.append(f"Learning rate {options.lr:g}, {options.precision}, one server; medians of {options.steps} steps.")
    for size in options.cases:
        with tempfile.TemporaryDirectory(prefix="vime-deltas-") as folder:
            deltas = asyncio.run(measure(size, [NUM_DELTAS], options, Path(folder) / "deltas"))
            whole = asyncio.run(measure(size, [], options, Path(folder) / "whole"))
        for metric, unit in UNITS.items():
            factor = 1000.0 if unit == "ms" else 1.0
            ours, reference = (factor * median(metrics[metric] for metrics in found) for found in (deltas, whole))
            result.add("deltas", f"{size}: {NAMES[metric]}", ours=ours, reference=reference, unit=unit)
        save(result, options)
    finish(result, options)


if __name__ == "__main__":
    main()
