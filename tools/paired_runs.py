"""Trainings that differ in one setting, in pairs of one seed: scores after training, and the difference over all items.

    python tools/paired_runs.py --title "Rollouts in int8" --pairs RUN_A RUN_B [RUN_A RUN_B …] [--alone RUN …]
        [--section results/precision.md] [--json PATH]

Each run is the folder of a complete one with the row `trained`; `--alone` are runs without a counterpart. The interval of a
difference is over items (`vime.report.paired`), and two runs of one configuration differ as well: compare the rows of its seeds.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median

import yaml
from bench_rows import Result, add_options, finish, save_section

from vime.report.items import Evaluation, read_evaluation
from vime.report.metrics_file import read_metrics
from vime.report.paired import PairedComparison, compare

TRAINED = "trained"
DIFFERENCE = "train/logprob_difference_mean"
REWARD = "reward/mean"
NUM_LAST = 10
"""The last steps, whose mean reward is shown."""


def differing(first: Path, second: Path) -> str:
    """The words of the command line that the second run has and the first has not."""
    own, others = (yaml.safe_load((run / "overrides.yaml").read_text()) for run in (second, first))
    return " ".join(word for word in own if word not in others and not word.startswith(("seed=", "output_dir=")))


def pooled(first: Evaluation, second: Evaluation) -> PairedComparison:
    """The comparison over the items of all data sets."""
    both = [
        [[item for dataset in side.protocol["datasets"] for item in side.items[dataset, TRAINED][run]] for run in range(count)]
        for side in (first, second)
        for count in [min(len(side.items[dataset, TRAINED]) for dataset in side.protocol["datasets"])]
    ]
    return compare(both[0], both[1])


def scores(run: Evaluation) -> dict[str, float]:
    """The strict score of each data set, in percent."""
    return {
        dataset: 100 * fmean(item["strict"] for items in run.items[dataset, TRAINED] for item in items)
        for dataset in run.protocol["datasets"]
    }


def line(folder: Path, setting: str, difference: str) -> str:
    """The row of one run."""
    summary = json.loads((folder / "summary.json").read_text())
    metrics = list(read_metrics(folder / "metrics.jsonl"))
    away = [row[DIFFERENCE] for row in metrics if DIFFERENCE in row]
    reward = fmean([row[REWARD] for row in metrics if REWARD in row][-NUM_LAST:])
    found = scores(read_evaluation(folder, rows=[TRAINED]))
    cells = [setting or "–", str(summary["seed"]), *(f"{value:.1f}" for value in found.values()), f"{reward:.3f}"]
    return f"| {' | '.join([*cells, f'{median(away):.1e}, {max(away):.1e}', difference])} |"


def main() -> None:
    """Compares, and shows or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--title", required=True)
    parser.add_argument("--pairs", type=Path, nargs="+", required=True, help="folders of runs, each followed by its counterpart")
    parser.add_argument("--alone", type=Path, nargs="*", default=[], help="folders of runs without a counterpart")
    parser.add_argument("--section", type=Path, help="page whose section on this is written anew")
    add_options(parser)
    options = parser.parse_args()
    if len(options.pairs) % 2:
        parser.error("--pairs takes an even number of folders")
    result = Result(title=options.title, columns=("with it", "without"))
    lines: list[str] = []
    for first, second in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        sides = [read_evaluation(run, rows=[TRAINED]) for run in (first, second)]
        found, setting = pooled(*sides), differing(first, second)
        if not lines:
            names = " | ".join(sides[0].protocol["datasets"])
            lines.append(f"| setting | seed | {names} | reward, last {NUM_LAST} steps | difference of logprobs | difference |")
            lines.append(f"|---|--:|{'--:|' * len(sides[0].protocol['datasets'])}--:|--:|--:|")
        lines.append(line(first, "", "–"))
        lines.append(line(second, f"`{setting}`", f"{found.difference:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"))
        seed = json.loads((second / "summary.json").read_text())["seed"]
        result.add(
            "pairs", f"seed {seed}, all {found.num_items} items", ours=found.second, reference=found.first, unit="% strict"
        )
    lines += [line(run, f"`{differing(options.pairs[0], run)}`", "–") for run in options.alone]
    words = yaml.safe_load((options.pairs[0] / "overrides.yaml").read_text())
    shared = [word for word in words if not word.startswith(("seed=", "output_dir=", "evaluation."))]
    result.notes.append(f"all runs: `{' '.join(shared)}`; a row without a setting is that alone")
    result.notes.append("difference of logprobs: between servers and trainer, median and largest mean of a step, in nats")
    result.notes.append("difference: strict score against the row above, in points, with its 95 % interval over items")
    if options.section:
        save_section(options.section, result, before="\n".join(lines))
    sys.stdout.write("\n".join(lines) + "\n")
    finish(result, options)


if __name__ == "__main__":
    main()
