"""Tokens per second of a packed training step beside a plain Hugging Face step and TRL's GRPO step, in one run.

    python tools/bench_trainer.py [--trl-python ENVIRONMENT/bin/python] [--sizes 3M 35M] [--samples 32] [--repeats 5]
                                  [--json PATH] [--markdown PATH]
    python tools/bench_trainer.py --profile  # where the time of ours goes, by kind of work
    python tools/bench_trainer.py --mfu      # on a CUDA device: the share of its matrix-product rate, Qwen2.5-7B's shapes

All train on the same sequences; a token is one of a prompt or response, padding is none. The sides are processes that take
turns, together with plain matrix products, and a row holds medians of CPU time: on a shared machine the wall clock says more
about the others. TRL lives in an environment of its own (`pip install trl` beside the same PyTorch), and is left out without
`--trl-python`.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median

from bench_rows import Result, add_options, finish
from sample_lengths import TINY
from side_turns import Side
from trainer_case import Case, draw_case, executed_flops, needed_flops, write_case
from trainer_profile import AUTOGRAD, KINDS, PYTHON
from trainer_sides import RATE_FLOPS

TOOLS = Path(__file__).resolve().parent
NAMES = {"hugging_face": "Hugging Face, padded", "trl": "TRL"}
GOALS = {
    "float32": {("equal", "hugging_face"): 1.2, ("MemAgent", "hugging_face"): 1.5},
    "bfloat16": {("equal", "hugging_face"): 1.5, ("MemAgent", "hugging_face"): 2.0},
}
"""Least ratios of tokens per CPU second, by precision, lengths and side; bfloat16's are for processors with AMX."""
SHARE_GOALS = {("3M", "bfloat16"): 0.2}
"""Least shares of the rate of matrix products, by size and precision."""
SEQUENCES_PER_ROLLOUT = 5


@dataclass(kw_only=True, slots=True)
class Times:
    """Seconds of one side's turns, in their order.

    Example: `Times(wall=[1.2, 1.3], cpu=[2.1, 2.2])`.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def main() -> None:
    """Measures every case, prints the table, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=["tiny", "3M", "35M"], default=["3M", "35M"])
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--cases", nargs="+", choices=list(TINY), default=list(TINY), help="of which lengths")
    parser.add_argument("--samples", type=int, default=32, help="sequences in a step (32)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side, after one that does not count (5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of each side (all)")
    parser.add_argument("--trl-python", type=Path, help="Python of an environment with TRL; without it TRL is left out")
    parser.add_argument("--mfu", action="store_true", help="Qwen2.5-7B's shapes on a CUDA device, nothing else")
    parser.add_argument("--profile", action="store_true", help="a table of ours by kind of work, nothing else")
    add_options(parser)
    arguments = parser.parse_args()
    result = Result(title="The training step", columns=("ours", "reference"))
    if arguments.mfu:
        measure_mfu(result, arguments)
    elif arguments.profile:
        result = profile(arguments)
    else:
        with started(arguments) as sides:
            for size, precision, name in product(arguments.sizes, arguments.precisions, arguments.cases):
                measure(result, arguments, sides, size=size, precision=precision, name=name)
        result.notes += explain(arguments)
    finish(result, arguments)


def measure(
    result: Result, arguments: argparse.Namespace, sides: dict[str, Side], *, size: str, precision: str, name: str
) -> None:
    """Adds the rows of one case, and a line for each goal that it misses."""
    case = draw_case(size, precision, lengths(name, arguments.samples))
    times = take_turns(case, sides, arguments.repeats)
    label = f"{size} {precision}, {name}"
    rate = RATE_FLOPS / median(times["rate"].cpu)
    speed = {side: case.num_tokens / median(found.cpu) for side, found in times.items() if side != "rate"}
    wall = {side: case.num_tokens / median(found.wall) for side, found in times.items()}
    first = len(result.rows)
    for side in [side for side in NAMES if side in speed]:
        row = result.add("trainer", f"{label}: {NAMES[side]}", ours=speed["ours"], reference=speed[side], unit="tokens/CPU s")
        result.add("trainer", f"{label}: {NAMES[side]}, by the clock", ours=wall["ours"], reference=wall[side], unit="tokens/s")
        goal = GOALS[precision].get((name, side), 0.0)
        if row.ratio < goal:
            result.notes.append(shortfall(case, f"{label}: {NAMES[side]}", side, goal, row.ratio, speed, rate))
    bound = case.num_tokens * rate / needed_flops(case)
    row = result.add("trainer", f"{label}: matrix products alone", ours=speed["ours"], reference=bound, unit="tokens/CPU s")
    if row.ratio < (goal := SHARE_GOALS.get((size, precision), 0.0)):
        result.notes.append(share_shortfall(label, goal, row.ratio, median(times["ours"].cpu)))
    for row in result.rows[first:]:  # a run takes minutes: show what there is
        sys.stderr.write(f"{row.case:<60} {row.ours:>12,.0f} {row.reference:>12,.0f} {row.ratio:>6.2f}  {row.unit}\n")


def lengths(name: str, num_samples: int) -> list[tuple[int, int]]:
    """Prompt and response tokens of the sequences of a step."""
    if name == "MemAgent":  # several sequences a rollout
        return TINY[name](-(-num_samples // SEQUENCES_PER_ROLLOUT), 0)[:num_samples]
    return TINY[name](num_samples, 0)


def profile(arguments: argparse.Namespace) -> Result:
    """Seconds of our step by kind of work, and their share of the whole step; medians of the turns."""
    result = Result(title="Where the time of a training step goes", columns=("seconds", "whole step"))
    threads = arguments.threads
    side = Side([sys.executable, str(TOOLS / "trainer_sides.py"), "profile", str(threads)], num_threads=threads)
    try:
        for size, precision, name in product(arguments.sizes, arguments.precisions, arguments.cases):
            case = draw_case(size, precision, lengths(name, arguments.samples))
            with tempfile.TemporaryDirectory() as folder:
                write_case(case, Path(folder))
                side.begin(Path(folder))
                turns = [side.turn() for _ in range(arguments.repeats)]
            seconds = {kind: median(turn[kind] for turn in turns) for kind in turns[0]}
            for kind in (*KINDS, AUTOGRAD, PYTHON):
                label = f"{size} {precision}, {name}: {kind}"
                result.add("trainer profile", label, ours=seconds[kind], reference=seconds["whole"], unit="s")
    finally:
        side.close()
    result.notes.append(
        f"Medians of {arguments.repeats} turns under PyTorch's profiler, {threads} threads; ratio: share of the step."
    )
    return result


@contextmanager
def started(arguments: argparse.Namespace) -> Iterator[dict[str, Side]]:
    """The sides' processes, which serve all cases."""
    commands = {name: [sys.executable, str(TOOLS / "trainer_sides.py"), name] for name in ("ours", "hugging_face", "rate")}
    if arguments.trl_python:
        commands["trl"] = [str(arguments.trl_python), str(TOOLS / "trl_side.py")]
    threads = arguments.threads
    sides = {name: Side([*command, str(threads)], num_threads=threads) for name, command in commands.items()}
    try:
        yield sides
    finally:
        for side in sides.values():
            side.close()


def take_turns(case: Case, sides: dict[str, Side], repeats: int) -> dict[str, Times]:
    """Each side's times; the sides are measured alternately."""
    times = {name: Times() for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        write_case(case, Path(folder))
        for side in sides.values():  # one after another, so that none is measured while another gets ready
            side.begin(Path(folder))
        for _ in range(repeats):
            for name, side in sides.items():
                turn = side.turn()
                times[name].wall.append(turn["wall"])
                times[name].cpu.append(turn["cpu"])
    return times


def shortfall(case: Case, label: str, side: str, goal: float, ratio: float, speed: dict[str, float], rate: float) -> str:
    """The reason why a ratio is below its goal, in figures of this run."""
    needed, executed = needed_flops(case), executed_flops(case, side)
    shares = {name: speed[name] / case.num_tokens * flops / rate for name, flops in (("ours", needed), (side, executed))}
    possible = case.num_tokens * rate / needed / speed[side]
    equal = executed / needed
    lead = shares["ours"] / shares[side]
    return (
        f"{label}: {ratio:.2f} of the goal {goal:.1f}. The reference multiplies {equal:.2f} times what is needed, so equal "
        f"efficiency gives {equal:.2f}; matrix products alone, at the measured rate, would give {possible:.2f}. "
        f"Shares of that rate: ours {shares['ours']:.0%}, the reference {shares[side]:.0%}, which is {lead:.2f} of the "
        f"{goal / equal:.2f} times that the goal takes. The rest is what a step does beside matrix products."
    )


def share_shortfall(label: str, goal: float, share: float, seconds: float) -> str:
    """The meaning of a share of the matrix rate below its goal, in figures of this run."""
    return (
        f"{label}: {share:.1%} of the rate of matrix products, the goal is {goal:.0%}. At that rate the needed products take "
        f"{share * seconds * 1e3:.0f} ms of the {seconds * 1e3:.0f} CPU ms of a step. The rest goes to smaller products, which "
        "are slower, and to all else; `--profile` says how much to what. Bound: with nothing but the products it would be all."
    )


def explain(arguments: argparse.Namespace) -> list[str]:
    """The meaning of the columns, and the parts that were not run."""
    return [
        "Goals beside Hugging Face, per CPU second: in float32 1.2 on equal lengths and 1.5 on MemAgent's; in bfloat16 1.5 and "
        "2.0. At 3M in bfloat16 a fifth of the rate of matrix products.",
        f"`matrix products alone`: the {arguments.samples} sequences without padding, logits for responses only, at the rate of "
        "1024 × 1024 products measured in the same turns; its ratio is the share of that rate that ours reaches.",
        "In bfloat16 ours and TRL keep float32 master weights; the Hugging Face step has bfloat16 weights and moments.",
        f"Medians of {arguments.repeats} turns, {arguments.threads} threads a side.",
        *([] if arguments.trl_python else ["TRL was not run: no `--trl-python`."]),
        "MFU on Qwen2.5-7B's shapes (`--mfu`) was not run: it needs a CUDA device.",
    ]


def measure_mfu(result: Result, arguments: argparse.Namespace) -> None:
    """Ours on eight layers of Qwen2.5-7B's shape, beside the device's own rate. Only prints a line if there is no device."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("--mfu needs a CUDA device; this machine has none, so nothing was run")
    lengths = [(3072, 1024)] * arguments.samples
    case = draw_case("7B", "bfloat16", lengths, max_tokens=16384)
    arguments.trl_python = None
    with started(arguments) as sides:
        times = take_turns(case, sides, arguments.repeats)
    speed, rate = case.num_tokens / median(times["ours"].wall), RATE_FLOPS / median(times["rate"].wall)
    bound = case.num_tokens * rate / needed_flops(case)
    result.add("trainer", "Qwen2.5-7B's shape, 8 layers, matrix products alone", ours=speed, reference=bound, unit="tokens/s")
    achieved = needed_flops(case) / median(times["ours"].wall) / 1e12
    result.notes.append(f"{achieved:.0f} TFLOP/s on {torch.cuda.get_device_name()}; the ratio is the MFU by the measured rate.")


if __name__ == "__main__":
    main()
