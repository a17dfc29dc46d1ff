"""Runs by LoRA beside runs that train all weights: scores, memory, seconds per step and bytes of each weight sync.

    python tools/lora_table.py outputs/memagent_tiny_lora/… outputs/memagent_tiny/… --out results/lora

Each complete run is a row of the table of its model. Memory is the plan's for the trainer's weights, gradients and optimizer,
beside the peak of its process. Rows of other runs on the page stay.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console

from vime.config import RunConfig
from vime.evaluation.conditions import TRAINED
from vime.files.jsonl import write_text
from vime.memory.processes import trainer_memory
from vime.preflight.compose import compose_run
from vime.report.metrics_file import read_metrics
from vime.report.results_page import OurRun, read_our_run
from vime.surroundings import settle

MIB = 2**20
PEAK = "machine/trainer_peak_bytes"
KEPT = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One run.

    Example: `Trained(model="tiny", weights="LoRA 8", servers="adapter", seed=0, lr=2e-3, scores={"docs_20": "97.7 ± 0.6"}, …)`.
    """

    model: str
    weights: str
    servers: str
    """`merge` or `adapter`; empty where all weights are trained."""
    seed: int
    lr: float
    scores: dict[str, str]
    """Strict score of the trained row in percent by data set, mean ± standard deviation over the runs of the evaluation."""
    memory: float
    """MiB of weights, gradients and optimizer."""
    peak: float = 0.0
    """MiB of the largest trainer rank at its peak; 0 where the run did not record it."""
    step_seconds: float
    """Median over the steps."""
    sync_bytes: float
    commit: str
    date: str
    hardware: str


def trained(folder: Path) -> Trained:
    """The row of a run folder. Raises what `read_our_run` does for an incomplete one."""
    run, rows = read_our_run(folder), read_metrics(folder / "metrics.jsonl")
    config = _config_of(folder)
    lora, memory = config.trainer.lora, trainer_memory(config)
    return Trained(
        model=run.model,
        weights=f"LoRA {lora.rank}" if lora.rank else "all",
        servers=config.serving.lora.value if lora.rank else "",
        seed=run.about["seed"],
        lr=config.trainer.lr,
        scores=_scores(run),
        memory=sum(memory[part] for part in KEPT) / MIB,
        peak=max((row[PEAK] for row in rows if PEAK in row), default=0.0) / MIB,
        step_seconds=median(row["time/step_seconds"] for row in rows if "time/step_seconds" in row),
        sync_bytes=median(row["sync/bytes"] for row in rows if "sync/bytes" in row),
        commit=run.about["commit"],
        date=run.about["date"],
        hardware=run.about["hardware"],
    )


def _config_of(folder: Path) -> RunConfig:
    words = yaml.safe_load((folder / "overrides.yaml").read_text())
    return compose_run([word for word in words if not word.startswith("output_dir=")]).config


def _scores(run: OurRun) -> dict[str, str]:
    rows = {dataset: found[TRAINED] for dataset, found in run.scores.items() if TRAINED in found}
    return {
        name: f"{row['mean']:.1f}" + (f" ± {row['sd']:.1f}" if row.get("num_runs", 1) > 1 else "") for name, row in rows.items()
    }


def page(rows: list[Trained]) -> str:
    """The tables, one for each model."""
    lines = [
        "# LoRA beside all weights",
        "",
        "Written by `python tools/lora_table.py RUN…`. Scores are strict, in percent of all items, of the model after training:",
        "mean ± standard deviation over the runs of one evaluation. MiB are the plan's for weights, gradients and optimizer of",
        "the trainer; the peak is that of its process, with PyTorch, activations and copies of weights on their way to servers.",
        "Seconds are the median of a step, with whatever else the machine did meanwhile.",
    ]
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        datasets = list(dict.fromkeys(name for row in own for name in row.scores))
        head = [
            "trained",
            "sent to servers",
            "seed",
            "lr",
            *datasets,
            "MiB",
            "MiB at the peak",
            "s per step",
            "bytes per sync",
            "commit",
            "date",
            "hardware",
        ]
        lines += ["", f"## {model}", "", f"| {' | '.join(head)} |", f"|---|---|{'--:|' * (len(head) - 5)}---|---|---|"]
        for row in own:
            cells: list[Any] = [row.weights, row.servers or "all weights", row.seed, f"{row.lr:g}"]
            cells += [row.scores.get(name, "") for name in datasets]
            cells += [
                f"{row.memory:.1f}",
                f"{row.peak:,.0f}" if row.peak else "",
                f"{row.step_seconds:.1f}",
                f"{row.sync_bytes:,.0f}",
                row.commit[:12],
                row.date,
                row.hardware,
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def _key(row: Trained) -> tuple[str, str, str, int]:
    return row.model, row.weights, row.servers, row.seed


def _kept(out: Path | None) -> list[Trained]:
    """The rows that are on the page."""
    path = out.with_suffix(".json") if out else None
    return [Trained(**row) for row in json.loads(path.read_text())] if path and path.exists() else []


def main() -> None:
    """Prints the page, or writes it."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, help="path of the page without its ending; rows go to .json")
    given = parser.parse_args()
    found = {_key(row): row for row in [*_kept(given.out), *map(trained, given.runs)]}
    rows = [found[key] for key in sorted(found)]
    if given.out is None:
        Console().print(page(rows), markup=False)
        return
    write_text(given.out.with_suffix(".md"), page(rows))
    write_text(given.out.with_suffix(".json"), json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
