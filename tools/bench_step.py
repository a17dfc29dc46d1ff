"""A whole GRPO step beside TRL's GRPOTrainer: generation, rewards, update and new weights, on the same prompts and lengths.

    python tools/bench_step.py --trl-python ENVIRONMENT/bin/python [--cases 1M 35M 35M-tools] [--repeats 3]
                               [--json PATH] [--markdown PATH]
    python tools/bench_step.py --against FOLDER [--cases 1M 1M-tools] [--precisions float32] [--pairs 8] [--repeats 3]

Ours is the whole system (Ray, a vLLM server, a rollout worker, the trainer), synchronous and one step off; TRL's is
`GRPOTrainer.train()` in an environment of its own (see README.md). Both sample the same number of tokens from the same random
model and make one optimizer step of each batch, without KL. Float32 rows put both at equal precision: TRL without gradient
checkpointing, which it has by default. As users run it: ours in bfloat16, TRL with `GRPOConfig()`'s defaults (`--trl` gives other
ways of running it). The sides take turns, step by step; a row holds medians, one step off means. `--against` puts another
checkout of this project in TRL's place (`against.py`), and `--numbers` measures this one alone.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import against
from against import Number, Numbers
from bench_rows import Result, Row, add_options, finish, save
from side_turns import Side
from step_case import SINGLE, TOOLS, StepCase, draw_case, write_case
from step_ours import Ours, Step, cpu_times, running, spent_since
from trainer_case import flops

from vime.report.machine_description import matrix_product_rate

TOOLS_FOLDER = Path(__file__).resolve().parent
PRECISIONS = {"float32": "float32", "bfloat16": "defaults"}
"""Our precisions, each with the way of running TRL that it is compared with."""
GOALS = {("float32", SINGLE): 1.5, ("bfloat16", SINGLE): 3.0, ("float32", TOOLS): 1.5, ("bfloat16", TOOLS): 4.0}
PHASES = ("generation", "training", "sync", "waiting")
SYNC_GOAL = 0.1
"""Largest share of a step that the trainer may wait for a sync."""
BESIDE_TRL, BESIDE_OURS = ["1M", "35M", "35M-tools"], ["1M", "1M-tools"]
"""Cases, if none are named: the larger the model, the less of a step is this project's own code."""
BY_THE_CLOCK = "sampled tokens/s"
WARM_UP = 2
"""Steps of ours one step off before the pipeline is full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A case's batch: 8 rollouts a prompt, replies of `tokens` (with tools: around that, several)."""

    size: str
    work: str
    num_prompts: int
    tokens: int


CASES = {
    "1M": Shape(size="1M", work=SINGLE, num_prompts=8, tokens=128),
    "1M-tools": Shape(size="1M", work=TOOLS, num_prompts=4, tokens=64),
    "35M": Shape(size="35M", work=SINGLE, num_prompts=2, tokens=96),
    "35M-tools": Shape(size="35M", work=TOOLS, num_prompts=1, tokens=48),
    "tiny": Shape(size="1M", work=SINGLE, num_prompts=1, tokens=8),
    "tiny-tools": Shape(size="1M", work=TOOLS, num_prompts=1, tokens=8),
}


@dataclass(kw_only=True, slots=True)
class Measured:
    """Steps of both sides of one case. Example: `Measured(synchronous=[Step(…)], ahead=[Step(…)], trl=[{"wall": 3.0, …}])`."""

    synchronous: list[Step] = field(default_factory=list)
    ahead: list[Step] = field(default_factory=list)
    trl: list[dict[str, float]] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    """CPU seconds of our processes by the clock while TRL had its turn."""
    rate: float = 0.0
    """FLOP/s of matrix products in ours' precision, beside the steps."""


def main() -> None:
    """Measures every case, prints the table, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, help="Python of an environment with TRL")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help=f"{BESIDE_TRL}; with --against {BESIDE_OURS}")
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), help="of ours: both; with --against float32")
    parser.add_argument("--trl", help="how TRL runs in all rows, one of the names in trl_step.py")
    parser.add_argument("--repeats", type=int, default=3, help="steps of each side, after those that do not count (3)")
    parser.add_argument("--samples", type=int, default=8, help="rollouts a prompt (8)")
    against.add_options(parser)
    add_options(parser)
    options = parser.parse_args()
    is_beside_ours = options.against or options.numbers
    options.cases = options.cases or (BESIDE_OURS if is_beside_ours else BESIDE_TRL)
    options.precisions = options.precisions or (["float32"] if is_beside_ours else list(PRECISIONS))
    result = Result(title="A whole GRPO step", columns=("ours", "TRL"))
    if options.against:
        words = ["--cases", *options.cases, "--precisions", *options.precisions]
        words += ["--repeats", str(options.repeats), "--samples", str(options.samples)]
        against.compare(result, options, "bench_step.py", words)
        return
    if not options.numbers and not has_trl(options.trl_python):
        parser.error(f"--trl-python {options.trl_python}: no TRL there; tools/README.md says how to make such an environment")
    with tempfile.TemporaryDirectory(prefix="vime-step-") as folder:
        if options.numbers:
            against.write_numbers(asyncio.run(measure_alone(options, Path(folder))))
            return
        asyncio.run(measure(result, options, Path(folder)))
    result.notes += explain(options)
    finish(result, options)


def has_trl(python: Path | None) -> bool:
    """TRL is in an environment."""
    return python is not None and not subprocess.run([python, "-c", "import trl"], capture_output=True).returncode


async def measure_alone(options: argparse.Namespace, folder: Path) -> Numbers:
    """The numbers of this checkout in all cases."""
    numbers: Numbers = {}

    async def take(case: StepCase, precision: str, ours: Ours, checkpoint: Path) -> None:
        await ours.begin(case, staleness=0)
        await ours.step()
        measured = Measured(synchronous=[await ours.step() for _ in range(options.repeats)])
        measured.ahead = await one_step_off(ours, case, options.repeats)
        check(case, measured)
        for (name, unit), speed in speeds(case, measured).items():
            numbers[f"{case.size} {precision}, {case.work}: {name}, {unit}"] = Number(value=speed, unit=unit)

    await in_systems(options, folder, take, not_ours=())
    return numbers


async def measure(result: Result, options: argparse.Namespace, folder: Path) -> None:
    """All cases beside TRL."""
    threads = os.cpu_count() or 1
    trl = Side([str(options.trl_python), str(TOOLS_FOLDER / "trl_step.py"), str(threads)], num_threads=threads)

    async def take(case: StepCase, precision: str, ours: Ours, checkpoint: Path) -> None:
        measured = await take_turns(case, ours, trl, checkpoint, repeats=options.repeats, precision=precision)
        report(result, case, precision, measured)
        save(replace(result, notes=[*result.notes, *explain(options)]), options)

    try:
        await in_systems(options, folder, take, not_ours={trl.pid})
    finally:
        trl.close()


async def in_systems(
    options: argparse.Namespace,
    folder: Path,
    take: Callable[[StepCase, str, Ours, Path], Awaitable[None]],
    *,
    not_ours: Collection[int],
) -> None:
    """Takes every case; those of one model and precision share a system and follow each other."""
    for size in dict.fromkeys(CASES[name].size for name in options.cases):
        names = [name for name in options.cases if CASES[name].size == size]
        checkpoint = folder / size
        checkpoint.mkdir()
        cases = {name: draw(name, options) for name in names}
        largest = max(cases.values(), key=lambda case: case.num_prompts)
        write_case(largest, checkpoint)
        for precision in options.precisions:
            async with running(largest, checkpoint, precision=precision, not_ours=not_ours) as ours:
                for case in cases.values():
                    case.trl = options.trl or PRECISIONS[precision]
                    write_case(case, checkpoint)
                    await take(case, precision, ours, checkpoint)


def draw(name: str, options: argparse.Namespace) -> StepCase:
    """A case by its name."""
    shape = CASES[name]
    return draw_case(
        shape.size, shape.work, num_prompts=shape.num_prompts, num_samples=options.samples, num_steps=20, tokens=shape.tokens
    )


async def take_turns(case: StepCase, ours: Ours, trl: Side, folder: Path, *, repeats: int, precision: str) -> Measured:
    """A step of ours, a step of TRL, …, then ours one step off. TRL waits in threads, so that our servers stay looked after."""
    measured = Measured()
    await asyncio.to_thread(trl.begin, folder)
    await ours.begin(case, staleness=0)
    await ours.step()
    for _ in range(repeats):
        measured.synchronous.append(await ours.step())
        before = cpu_times(ours.not_ours)
        measured.trl.append(await asyncio.to_thread(trl.turn))
        measured.idle.append(sum(spent_since(before, ours.not_ours).values()) / measured.trl[-1]["wall"])
    measured.rate = 1e9 * await asyncio.to_thread(matrix_product_rate, dtype=precision)
    measured.ahead = await one_step_off(ours, case, repeats)
    check(case, measured)
    return measured


async def one_step_off(ours: Ours, case: StepCase, repeats: int) -> list[Step]:
    """Our steps, twice `repeats` of them, each while the rollouts of the next are made."""
    await ours.begin(case, staleness=1)
    num_steps = WARM_UP + 2 * repeats + 1  # pairs, for a short step follows a long one; in the last nothing is generated ahead
    ahead = [await ours.step(num_left=num_steps - number) for number in range(num_steps)]
    await ours.end()
    return ahead[WARM_UP:-1]


def check(case: StepCase, measured: Measured) -> None:
    """Checks that both sides sampled the tokens that the case demands, and trained them."""
    num_rollouts = case.num_prompts * case.num_samples
    steps = measured.synchronous + measured.ahead
    counts = [round(step.metrics["rollout/response_tokens_mean"] * num_rollouts) for step in steps]
    counts += [round(turn["tokens"]) for turn in measured.trl]
    assert set(counts) == {case.num_sampled_tokens}, f"sampled {counts}, not {case.num_sampled_tokens}"
    assert all(step.metrics["train/grad_norm"] > 0 for step in steps), steps


def report(result: Result, case: StepCase, precision: str, measured: Measured) -> None:
    """The rows of one case, the shares of its steps, and a line for a goal that it misses."""
    label = f"{case.size} {precision}, {case.work}"
    tokens = case.num_sampled_tokens
    trl = {name: tokens / median(turn[name] for turn in measured.trl) for name in ("wall", "cpu")}
    rows: list[Row] = []
    for (name, unit), speed in speeds(case, measured).items():
        reference = trl["wall"] if unit == BY_THE_CLOCK else trl["cpu"]
        rows.append(result.add("step", f"{label}: {name}", ours=speed, reference=reference, unit=unit))
    for row in rows:  # a run takes minutes: show what there is
        sys.stderr.write(f"{row.case:<50} {row.ours:>10,.0f} {row.reference:>10,.0f} {row.ratio:>6.2f}  {row.unit}\n")
    generation, wall = (median(turn[name] for turn in measured.trl) for name in ("generation", "wall"))
    result.notes.append(
        f"{label} ({case.num_prompts * case.num_samples} rollouts, {tokens:,} sampled tokens; TRL `{case.trl}`): "
        f"{shares('synchronous', measured.synchronous)}; {shares('one step off', measured.ahead)}; "
        f"TRL {wall:.2f} s: generation {generation / wall:.0%}, all else {1 - generation / wall:.0%}; "
        f"our idle processes used {fmean(measured.idle):.0%} of a core meanwhile."
    )
    if num_faults := sum(step.metrics["server/num_faults"] for step in measured.synchronous + measured.ahead):
        result.notes.append(f"{label}: the server had {num_faults:.0f} faults meanwhile; measure again on a quiet machine.")
    for name, steps in (("synchronous", measured.synchronous), ("one step off", measured.ahead)):
        if (share := phase_seconds(steps, "sync") / sum(step.wall for step in steps)) > SYNC_GOAL:
            beside = steps is measured.ahead
            result.notes.append(long_sync(f"{label}, {name}", share, steps, beside_generation=beside))
    goal = GOALS[precision, case.work]
    best = max(row.ratio for row in rows if row.unit == BY_THE_CLOCK)
    reached = rows[0].ratio if precision == "float32" else best
    if reached < goal:
        result.notes.append(shortfall(label, goal, reached, case, measured))


def speeds(case: StepCase, measured: Measured) -> dict[tuple[str, str], float]:
    """Sampled tokens of ours in a second, by the way of training and the unit."""
    found: dict[tuple[str, str], float] = {}
    for name, steps in (("synchronous", measured.synchronous), ("one step off", measured.ahead)):
        middle = median if name == "synchronous" else fmean  # of pairs, which differ
        found[name, BY_THE_CLOCK] = case.num_sampled_tokens / middle(step.wall for step in steps)
        found[name, "sampled tokens/CPU s"] = case.num_sampled_tokens / middle(step.cpu_seconds for step in steps)
    return found


def shares(name: str, steps: list[Step]) -> str:
    """Describes where the time of a way of training goes, by the clock and in CPU seconds."""
    wall, cpu = (sum(seconds) for seconds in zip(*((step.wall, step.cpu_seconds) for step in steps)))
    phases = {phase: phase_seconds(steps, phase) / wall for phase in PHASES}
    kinds = {kind: sum(step.cpu[kind] for step in steps) / cpu for kind in steps[0].cpu}
    parts, of_cpu = (", ".join(f"{name} {share:.0%}" for name, share in found.items()) for found in (phases, kinds))
    return f"{name} {wall / len(steps):.2f} s: {parts} (of {cpu / len(steps):.1f} CPU s: {of_cpu})"


def phase_seconds(steps: list[Step], phase: str) -> float:
    """Seconds of a phase in all steps together."""
    return sum(step.metrics.get(f"time/{phase}_share", 0.0) * step.wall for step in steps)


def long_sync(label: str, share: float, steps: list[Step], *, beside_generation: bool) -> str:
    """The reason why syncs take a larger share of the steps than their goal, in figures of this run."""
    parts = {name: [1000 * step.metrics[f"sync/{name}_seconds"] for step in steps] for name in ("export", "check", "pause")}
    waited = 1000 * phase_seconds(steps, "sync") / len(steps)
    rest = waited - sum(map(fmean, parts.values()))
    alone = sum(map(min, parts.values()))
    wall = 1000 * fmean(step.wall for step in steps)
    cause = f"generation uses the same {os.cpu_count()} cores meanwhile" if beside_generation else "the step itself is short"
    return (
        f"{label}: syncs take {share:.0%} of the steps, the goal is {SYNC_GOAL:.0%}. Of {waited:.0f} ms, writing takes "
        f"{fmean(parts['export']):.0f}, loading beside the old weights {fmean(parts['check']):.0f}, the pause "
        f"{fmean(parts['pause']):.0f}, calls and the wait for the probe {rest:.0f}. Cause: {cause}. "
        f"Bound: with the shortest of each part, {alone:.0f} ms, it would be "
        f"{alone / (wall - waited + alone):.0%}."
    )


def shortfall(label: str, goal: float, ratio: float, case: StepCase, measured: Measured) -> str:
    """The reason why a ratio is below its goal, in figures of this run."""
    steps = measured.synchronous
    seconds = {phase: median(step.metrics.get(f"time/{phase}_seconds", 0.0) for step in steps) for phase in PHASES[:3]}
    generation = median(turn["generation"] for turn in measured.trl)
    rest = median(turn["wall"] for turn in measured.trl) - generation
    behind = {"generation": seconds["generation"] - generation, "training and sync": seconds["training"] + seconds["sync"] - rest}
    bound = step_flops(case, steps[-1]) / measured.rate
    wall = generation + rest
    worst = max(behind, key=lambda name: behind[name])
    side = "TRL is quicker there" if behind[worst] > 0 else "there it gains least"
    return (
        f"{label}: {ratio:.2f} of the goal {goal:.1f}. Ours: generation {seconds['generation']:.2f} s, training "
        f"{seconds['training']:.2f} s, sync {seconds['sync']:.2f} s; TRL: generation {generation:.2f} s, all else {rest:.2f} s. "
        f"Cause: {worst}, {side}. Bound: matrix products alone take {bound:.2f} s at the rate measured beside the steps, which "
        f"would be {wall / bound:.2f}; with TRL's time for its quicker phases "
        f"{wall / (min(seconds['generation'], generation) + min(seconds['training'] + seconds['sync'], rest)):.2f}."
    )


def step_flops(case: StepCase, step: Step) -> float:
    """FLOPs that any step needs: each token once to sample or read it, then forward and backward; logits where sampled."""
    num_rollouts = case.num_prompts * case.num_samples
    trained = step.metrics["train/tokens_per_second"] * step.metrics["train/seconds"]
    row = (round(trained / num_rollouts), round(case.num_sampled_tokens / num_rollouts))
    return 4 / 3 * flops(case.size, [row] * num_rollouts)


def explain(options: argparse.Namespace) -> list[str]:
    """The meaning of the rows, and the parts that were not run."""
    return [
        "Goals, by the clock: 1.5 of TRL at equal precision (synchronous); as users run it 3.0, and 4.0 with tools.",
        "A CPU second is one of any process: of ours the driver, Ray, server, worker and trainer, of TRL its one.",
        f"Medians of {options.repeats} steps; one step off, means of twice as many.",
    ]


if __name__ == "__main__":
    main()
