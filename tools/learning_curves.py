"""Trains the tiny MemAgent task with every algorithm, one after another, and writes their curves as figures, a table and JSON.

    python tools/learning_curves.py --steps 20 --output results/learning_curves

Writes PATH.md, PATH.json and the figures PATH_reward.svg and PATH_loss.svg. The run folders are in outputs/learning_curves, and
complete runs are not repeated. `sft` starts from the untrained tiny model, and its curve is the loss on demonstrations; the other
algorithms start from the shipped model, and their curve is the training reward. Learning from a teacher has a program of its own,
`distillation_curves.py`.
"""

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from svg_chart import standalone_chart

from vime.config import AlgorithmName
from vime.preflight.rules.objective import NAMED
from vime.report.charts import Series
from vime.report.metrics_file import curves, read_metrics

RUNS = Path("outputs/learning_curves")
START = RUNS / "start"
FIGURES = {"reward/mean": ("reward", "training reward"), "train/loss": ("loss", "loss of demonstrations")}
OF_CRITICS = {
    "ppo": ["algorithm.critic.lr=1e-3"],
    "sao": [
        "algorithm.critic.lr=3e-4",
        "algorithm.critic.adaptive_alpha=1",
        "algorithm.critic.warmup_steps=3",
        "rollout.num_samples_per_prompt=1",
        "rollout.num_prompts=128",
    ],
}
"""Settings of critics on rollouts of about 70 tokens: lambda stays near 1, where the paper's alpha is for thousands of tokens."""
NUM_ENDS = 3
"""Number of steps that are averaged at each end of a curve."""


@dataclass(kw_only=True, slots=True)
class Curve:
    """One run. Example: `Curve(algorithm="gspo", command="python -m …", metric="reward/mean", points=[[1, 0.1], …], …)`."""

    algorithm: str
    command: str
    metric: str
    points: list[list[float]]
    seed: int
    wall_seconds: float
    commit: str
    date: str
    machine: dict[str, Any]

    @property
    def ends(self) -> tuple[float, float]:
        """Means of the first and of the last steps."""
        values = [value for _, value in self.points]
        return fmean(values[:NUM_ENDS]), fmean(values[-NUM_ENDS:])

    @property
    def has_learned(self) -> bool:
        """True if the reward rose, or the loss fell, from the first steps to the last."""
        first, last = self.ends
        return last < first if self.metric == "train/loss" else last > first


def command_of(algorithm: str, *, steps: int, seed: int) -> list[str]:
    """The command-line words of one run; supervised training takes ten times the steps, because they are short."""
    words = ["+method=memagent", f"algorithm={algorithm}", f"seed={seed}", "evaluation.rows=[]"]
    words += [f"output_dir={RUNS / f'{algorithm}_{seed}'}"]
    if algorithm == AlgorithmName.sft.value:
        words += [f"model.checkpoint={START}", "trainer.lr=1e-3", "trainer.sft_tokens_per_step=5000"]
        return [*words, f"trainer.num_steps={10 * steps}"]
    if algorithm in OF_CRITICS:
        return [*words, *OF_CRITICS[algorithm], f"trainer.num_steps={steps}"]
    if algorithm == AlgorithmName.dapo.value:  # the better the task is solved, the more groups a batch with a signal takes
        return [*words, "rollout.max_filtered_share=0.99", f"trainer.num_steps={steps // 2}"]
    return [*words, f"trainer.num_steps={steps}"]


def measure(algorithm: str, *, steps: int, seed: int) -> Curve:
    """The curve of one algorithm, which is run unless a complete run exists. Raises `CalledProcessError` if the run fails."""
    words = command_of(algorithm, steps=steps, seed=seed)
    folder = RUNS / f"{algorithm}_{seed}"
    if not (folder / "summary.json").exists():
        again = ["resume=true"] if folder.exists() else []
        subprocess.run([sys.executable, "-m", "vime.run", *words, *again], check=True)
    metric = "train/loss" if algorithm == AlgorithmName.sft.value else "reward/mean"
    found_steps, values = curves(read_metrics(folder / "metrics.jsonl"))[metric]
    summary = json.loads((folder / "summary.json").read_text())
    changed = (folder / "code.diff").is_file() and (folder / "code.diff").read_text().strip()
    return Curve(
        algorithm=algorithm,
        command=shlex.join(["python", "-m", "vime.run", *words]),
        metric=metric,
        points=[[step, value] for step, value in zip(found_steps, values)],
        seed=seed,
        wall_seconds=summary["wall_seconds"],
        commit=(folder / "commit.txt").read_text().split()[0] + (" with changes" if changed else ""),
        date=summary["finished"],
        machine=summary["machine"],
    )


def table(found: list[Curve], name: str) -> str:
    """The curves as Markdown: one line per run, then the machine, the commit and the commands."""
    last = found[-1]
    lines = [
        "# Learning curves of all algorithms on the tiny MemAgent task",
        "",
        f"Made by `python tools/learning_curves.py`. Means of the first and of the last {NUM_ENDS} steps; all points are in the",
        "JSON file beside this one. Reward is the training reward (0 to 1), loss that of demonstrations.",
        "",
        *(line for end in figures(found) for line in (f"![{end}]({name}_{end}.svg)", "")),
        "| algorithm | seed | metric | steps | first | last | learned | wall seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for curve in found:
        first, end = curve.ends
        cells = [curve.algorithm, curve.seed, curve.metric, len(curve.points), f"{first:.3f}", f"{end:.3f}"]
        cells += ["yes" if curve.has_learned else "no", f"{curve.wall_seconds:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    machine = last.machine
    lines += [
        "",
        f"{machine['processor']}, {machine['num_cores']} cores, {machine['memory_gib']:g} GiB, "
        f"{machine['matmul_gflops_float32']:.0f} GFLOP/s in float32, load {machine['load_average'][0]:g}; "
        f"GPUs: {', '.join(map(str, machine['gpus'])) or 'none'}; {last.date}; commit {last.commit}.",
        "",
        *(f"    {curve.command}" for curve in found),
    ]
    return "\n".join(lines) + "\n"


def figures(found: list[Curve]) -> dict[str, str]:
    """The curves as SVG files by the end of their names: the reward of all algorithms, and the loss of demonstrations."""
    drawn = {}
    for metric, (end, label) in FIGURES.items():
        series = [
            Series(
                label=f"{curve.algorithm}, seed {curve.seed}",
                x=[step for step, _ in curve.points],
                y=[y for _, y in curve.points],
            )
            for curve in found
            if curve.metric == metric
        ]
        if series:
            drawn[end] = standalone_chart(f"tiny MemAgent task: {label}", series, x_label="step", y_label=label)
    return drawn


def write(found: list[Curve], output: Path) -> None:
    """Writes the table, the data and the figures."""
    output.with_suffix(".json").write_text(json.dumps([asdict(curve) for curve in found], indent=1) + "\n")
    output.with_suffix(".md").write_text(table(found, output.name))
    for end, figure in figures(found).items():
        output.with_name(f"{output.name}_{end}.svg").write_text(figure)


def main() -> int:
    """Runs the algorithms of the command line; results are written after every run, so that an interruption loses none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name.value for name in (*NAMED, AlgorithmName.sft) if name is not AlgorithmName.on_policy_distillation]
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("results/learning_curves"))
    options = parser.parse_args()
    if AlgorithmName.sft.value in options.algorithms:
        subprocess.run([sys.executable, "-m", "agentic.memagent.tiny.model", str(START)], check=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found: list[Curve] = []
    for seed in options.seeds:
        for name in options.algorithms:
            found.append(measure(name, steps=options.steps, seed=seed))
            write(found, options.output)
    Console().print(table(found, options.output.name), markup=False, soft_wrap=True)
    return 0 if all(curve.has_learned for curve in found) else 1


if __name__ == "__main__":
    sys.exit(main())
