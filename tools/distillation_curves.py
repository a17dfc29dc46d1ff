"""Trains the tiny MemAgent task by GRPO and by a teacher from the same start, and writes held-out scores at the same steps.

    python tools/distillation_curves.py --steps 12 --seeds 1 2 --output results/distillation

The teacher is the shipped tiny model after 20 steps of GRPO with seed 0. All runs of a seed see the same prompts, with the same
number of rollouts a step and the same learning rate. Writes PATH.md, PATH.json and the figure PATH.svg; the run folders are in
outputs/distillation, and complete runs are not repeated.
"""

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from svg_chart import standalone_chart

from vime.report.charts import Series
from vime.report.metrics_file import curves, read_metrics

RUNS = Path("outputs/distillation")
TEACHER_STEPS = 20
DATASET = "docs_20"
HELD_OUT = (
    "data.evaluation=[{name: docs_20, generator: agentic.memagent.tiny.task.generate_rows, "
    "generator_args: {split: eval, num_docs: 20}, num_items: 100}]"
)
LOSS = ["algorithm.distillation.term=loss", "algorithm.distillation.top_k=20"]
KINDS: dict[str, list[str]] = {
    "GRPO": ["algorithm=grpo"],
    "reverse KL as advantages": ["+experiment=memagent_tiny_distillation"],
    "forward KL over 20 tokens": [
        "+experiment=memagent_tiny_distillation",
        *LOSS,
        "algorithm.distillation.divergence=forward_kl",
    ],
    "reverse KL and rewards": ["+experiment=memagent_tiny_distillation", "algorithm.distillation.reward_coefficient=1"],
}
"""The words of each kind of run, beside those that all have."""


@dataclass(kw_only=True, slots=True)
class Curve:
    """Held-out scores of one run in percent by step, step 0 included."""

    kind: str
    seed: int
    rollouts: str
    """Prompts and rollouts of each in a step, as `16 x 8`."""
    command: str
    scores: list[list[float]]
    scored_tokens: float
    """Tokens that the teacher has scored."""
    wall_seconds: float
    commit: str
    date: str
    machine: dict[str, Any]


def run(folder: Path, words: list[str]) -> str:
    """Runs one training unless it is complete; returns its command. Raises `CalledProcessError` if it fails."""
    words = [*words, f"output_dir={folder}"]
    if not (folder / "summary.json").exists():
        again = ["resume=true"] if folder.exists() else []
        subprocess.run([sys.executable, "-m", "vime.run", *words, *again], check=True)
    return shlex.join(["python", "-m", "vime.run", *words])


def measure(kind: str, *, steps: int, seed: int, every: int, prompts: int, samples: int) -> Curve:
    """The curve of one run, with a score every `every` steps."""
    own, folder = KINDS[kind], RUNS / f"{kind.replace(' ', '_').lower()}_{prompts}x{samples}_{seed}"
    method = [] if any(word.startswith("+experiment") for word in own) else ["+method=memagent"]
    teacher = [] if method else [f"serving.models.teacher.checkpoint={RUNS / 'teacher' / 'model'}"]
    words = [*method, *own, *teacher, f"seed={seed}", f"trainer.num_steps={steps}", f"trainer.evaluate_every={every}", HELD_OUT]
    words += [f"rollout.num_prompts={prompts}", f"rollout.num_samples_per_prompt={samples}"]
    words += ["evaluation.rows=[scaffold,trained]", "evaluation.num_runs=1", "evaluation.extra_temperatures=[]"]
    command = run(folder, words)
    summary = json.loads((folder / "summary.json").read_text())
    metrics = curves(read_metrics(folder / "metrics.jsonl"))
    ends = {at: summary["datasets"][DATASET][row]["mean"] for at, row in ((0, "scaffold"), (steps, "trained"))}
    during = dict(zip(*metrics[f"evaluation/{DATASET}"], strict=True))
    changed = (folder / "code.diff").is_file() and (folder / "code.diff").read_text().strip()
    return Curve(
        kind=kind,
        seed=seed,
        rollouts=f"{prompts} x {samples}",
        command=command,
        scores=[[step, score] for step, score in sorted((during | ends).items())],
        scored_tokens=sum(metrics.get("serving/teacher/input_tokens", ([], []))[1]),
        wall_seconds=summary["wall_seconds"],
        commit=(folder / "commit.txt").read_text().split()[0] + (" with changes" if changed else ""),
        date=summary["finished"],
        machine=summary["machine"],
    )


def table(found: list[Curve], teacher: dict[str, Any], command: str, name: str) -> str:
    """The page: the teacher's scores, those of each run by step, and how they were made."""
    of_teacher = teacher["datasets"][DATASET]
    steps = [int(step) for step, _ in found[0].scores]
    lines = [
        "# Learning from a teacher on the tiny MemAgent task",
        "",
        f"Made by `python tools/distillation_curves.py`. Strict scores in percent of {of_teacher['trained']['num_items']} "
        f"held-out questions ({DATASET}) at temperature 1, one run each, after each step. The teacher is the student's start "
        f"after {TEACHER_STEPS} steps of GRPO: it scores {of_teacher['trained']['mean']:.0f}, its start scored "
        f"{of_teacher['scaffold']['mean']:.0f}. Prompts, rollouts a step and learning rate are the same in all runs of a seed.",
        "",
        f"![held-out scores]({name}.svg)",
        "",
        f"| run | prompts x rollouts | seed | {' | '.join(map(str, steps))} |",
        f"|---|---|---|{'---|' * len(steps)}",
    ]
    for curve in found:
        scores = {int(step): score for step, score in curve.scores}
        cells = " | ".join(f"{scores[step]:.0f}" if step in scores else "" for step in steps)
        lines.append(f"| {curve.kind} | {curve.rollouts} | {curve.seed} | {cells} |")
    lines += ["", *_verdicts(found, steps[-1]), ""]
    machine = found[-1].machine
    lines += [
        f"{machine['processor']}, {machine['num_cores']} cores, {machine['memory_gib']:g} GiB; {found[-1].date}; commits "
        f"{', '.join(dict.fromkeys(curve.commit for curve in found))}. Seconds of each run, with its start and its evaluations, "
        f"beside other work: {', '.join(f'{curve.wall_seconds:.0f}' for curve in found)}.",
        "",
        *(f"    {each}" for each in (command, *(curve.command for curve in found))),
    ]
    return "\n".join(lines) + "\n"


def _verdicts(found: list[Curve], steps: int) -> list[str]:
    """For each run with a teacher, the first step with at least the score of GRPO of its seed at the end."""
    ends = {curve.seed: curve.scores[-1][1] for curve in found if curve.kind == "GRPO"}
    lines = ["| run | seed | GRPO's score after all steps | reached after step | score before | score at a third of the steps |"]
    lines.append("|---|---|---|---|---|---|")
    for curve in (curve for curve in found if curve.kind != "GRPO" and curve.seed in ends):
        reached = next((f"{step:.0f}" for step, score in curve.scores if score >= ends[curve.seed]), "not reached")
        third = {int(step): score for step, score in curve.scores}[steps // 3]
        cells = [curve.kind, curve.seed, f"{ends[curve.seed]:.0f}", reached, f"{curve.scores[0][1]:.0f}", f"{third:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def write(found: list[Curve], command: str, output: Path) -> None:
    """Writes the page, the data and the figure."""
    teacher = json.loads((RUNS / "teacher" / "summary.json").read_text())
    output.with_suffix(".json").write_text(json.dumps([asdict(curve) for curve in found], indent=1) + "\n")
    output.with_suffix(".md").write_text(table(found, teacher, command, output.name))
    series = [
        Series(label=f"{each.kind}, seed {each.seed}", x=[step for step, _ in each.scores], y=[score for _, score in each.scores])
        for each in found
    ]
    title = "tiny MemAgent task: held-out score, %"
    output.with_suffix(".svg").write_text(standalone_chart(title, series, x_label="step", y_label="%"))


def main() -> int:
    """Trains the teacher and all runs of the command line; results are written after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=1, help="steps between two scores")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=Path("results/distillation"))
    options = parser.parse_args()
    words = ["+method=memagent", "algorithm=grpo", "seed=0", f"trainer.num_steps={TEACHER_STEPS}"]
    words += ["evaluation.rows=[scaffold,trained]", "evaluation.num_runs=1", "evaluation.extra_temperatures=[]"]
    command = run(RUNS / "teacher", words)
    found: list[Curve] = []
    for seed in options.seeds:
        for kind in options.kinds:
            sizes = {"every": options.every, "prompts": options.prompts, "samples": options.samples}
            found.append(measure(kind, steps=options.steps, seed=seed, **sizes))
            write(found, command, options.output)
    Console().print(options.output.with_suffix(".md").read_text(), markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
