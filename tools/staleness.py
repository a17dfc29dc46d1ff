"""Trains the tiny MemAgent task synchronously and asynchronously from several seeds, and compares the ends item by item.

    python tools/staleness.py [--staleness 0 1 4] [--seeds 0 1 2] [--steps 60] [--output results/staleness]
    python tools/staleness.py --long-tail --output results/staleness_long_tail
    python tools/staleness.py --long-tail --lr-schedule linear --output results/staleness_long_tail_decay

In the asynchronous runs the servers change weights between two tokens. The first of them is repeated with the cache kept over
each sync (`serving.keep_cache`): its cost shows in the logprobs of tokens that were sampled under the weights in training; a
lower bound on the age leaves more of these tokens. With `--long-tail` nothing is repeated; instead the agents of the asynchronous
runs first call a tool that now and then takes many steps (`long_tail.py`), so that rollouts of late groups are sampled again.
With a learning rate that falls to 0 (`--lr-schedule`) the end of a run does not depend on chance in its last updates. Writes
PATH.md and PATH.json after every seed; run folders are under outputs/staleness, and a complete one is not run again. Every mode
is compared with the first: paired differences over the same items of all data sets, with their 95 % interval over items. The goal
is about the modes that clear the cache, each against each.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench_rows import Result, circumstances

from vime.config import Schedule
from vime.report.items import read_evaluation
from vime.report.metrics_file import read_metrics
from vime.report.paired import compare

RUNS = Path("outputs/staleness")
ROW = "trained"
GOAL_POINTS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One way of training. Example: `Mode(staleness=4, keep_cache=True)`."""

    staleness: int
    keep_cache: bool = False
    long_tail: bool = False
    lr_schedule: str = Schedule.constant.value

    @property
    def name(self) -> str:
        """The mode's name in the table."""
        traits = (", cache kept" if self.keep_cache else "") + (", long tail" if self.long_tail else "")
        return f"max_staleness={self.staleness}{traits}"

    def folder(self, seed: int, *, steps: int) -> Path:
        """The folder of its run of this seed and length."""
        traits = ("_kept" if self.keep_cache else "") + ("_tail" if self.long_tail else "")
        traits += f"_{self.lr_schedule}" if self.lr_schedule != Schedule.constant.value else ""
        return RUNS / f"{self.staleness}{traits}_{steps}_steps_{seed}"


@dataclass(kw_only=True, slots=True)
class Ends:
    """The results of the runs of one mode, by data set and seed."""

    mode: Mode
    scores: dict[str, list[float]] = field(default_factory=dict)
    """Strict, 0-100, by data set; one per seed."""
    differences: list[float] = field(default_factory=list)
    """Differences from the first mode over all items, one per seed."""
    intervals: list[list[float]] = field(default_factory=list)
    lowest_rewards: list[float] = field(default_factory=list)
    """Lowest mean reward of a batch in the second half of the run, one per seed."""
    staleness_mean: float = 0.0
    share_resampled: float = 0.0
    """Ratio of rollouts that were sampled again to trained ones."""
    num_current_tokens: int = 0
    """Trained tokens of the weights in training, over all steps and seeds; the differences below are over these."""
    logprob_difference_mean: float = 0.0
    """Mean difference between the logprobs of trainer and servers."""
    logprob_difference_max: float = 0.0
    commits: list[str] = field(default_factory=list)
    """The commit of each run."""


def run(mode: Mode, *, seed: int, steps: int) -> None:
    """Trains and evaluates, unless that is done. Raises `CalledProcessError` if the run fails."""
    folder = mode.folder(seed, steps=steps)
    if (folder / "summary.json").exists():
        return
    words = [
        "+method=memagent",
        f"seed={seed}",
        f"trainer.num_steps={steps}",
        f"trainer.lr_schedule={mode.lr_schedule}",
        f"rollout.max_staleness={mode.staleness}",
        f"serving.keep_cache={str(mode.keep_cache).lower()}",
        f"evaluation.rows=[{ROW}]",
        "evaluation.extra_temperatures=[]",
        f"output_dir={folder}",
        *(["method.generate=tools/long_tail.py:generate"] if mode.long_tail else []),
        *(["resume=true"] if folder.exists() else []),
    ]
    subprocess.run([sys.executable, "-m", "vime.run", *words], check=True)


def ends_of(mode: Mode, first: Mode, seeds: list[int], *, steps: int) -> Ends:
    """Reads the runs of a mode beside those of the first."""
    ends = Ends(mode=mode)
    ages: list[float] = []
    total = num_resampled = num_rollouts = 0.0
    for seed in seeds:
        own, other = (read_evaluation(m.folder(seed, steps=steps), rows=[ROW]) for m in (mode, first))
        found = {name: compare(other.items[name, ROW], own.items[name, ROW]) for name in own.protocol["datasets"]}
        for name, comparison in found.items():
            ends.scores.setdefault(name, []).append(comparison.second)
        ends.differences.append(fmean(c.difference for c in found.values()))
        ends.intervals.append([fmean(c.low for c in found.values()), fmean(c.high for c in found.values())])
        ends.commits.append((mode.folder(seed, steps=steps) / "commit.txt").read_text().split()[0][:10])
        rows = read_metrics(mode.folder(seed, steps=steps) / "metrics.jsonl")
        ends.lowest_rewards.append(min(row["reward/mean"] for row in rows if row["step"] > steps // 2 and "reward/mean" in row))
        ages += [row["rollout/staleness_mean"] for row in rows if "rollout/staleness_mean" in row]
        for row in rows:
            num_resampled += row.get("rollout/num_rollouts_resampled", 0.0)
            num_rollouts += row.get("rollout/num_rollouts", 0.0)
            count = int(row.get("train/num_current_tokens", 0))
            if count:
                ends.num_current_tokens += count
                total += count * row["train/logprob_difference_mean"]
                ends.logprob_difference_max = max(ends.logprob_difference_max, row["train/logprob_difference_max"])
    ends.staleness_mean = fmean(ages)
    ends.share_resampled = num_resampled / num_rollouts
    ends.logprob_difference_mean = total / max(1, ends.num_current_tokens)
    return ends


def page(found: list[Ends], seeds: list[int], result: Result) -> str:
    """Markdown: one line per mode."""
    names = list(found[0].scores)
    lines = [
        f"# {result.title}",
        "",
        *(f"- {line}" for line in circumstances(result)),
        f"- seeds {', '.join(map(str, seeds))}; strict score in percent, mean ± SD over seeds; difference from the first line "
        "over the same items, mean over data sets, and lowest mean reward of a batch in the second half of training, by seed",
        f"- runs of commit {', '.join(sorted({commit for ends in found for commit in ends.commits}))}",
        f"- learning rate: {found[0].mode.lr_schedule}",
        "",
        f"| mode | {' | '.join(names)} | difference | lowest reward | mean age of a token | sampled again | "
        "logprob difference: mean | max | tokens |",
        f"|---|{'---|' * (len(names) + 7)}",
    ]
    for ends in found:
        cells = [f"{fmean(scores):.1f} ± {stdev(scores) if len(scores) > 1 else 0:.1f}" for scores in ends.scores.values()]
        differences = ", ".join(f"{difference:+.1f}" for difference in ends.differences)
        lowest = ", ".join(f"{reward:.2f}" for reward in ends.lowest_rewards)
        cells += [differences, lowest, f"{ends.staleness_mean:.2f}", f"{ends.share_resampled:.1%}"]
        cells += [f"{ends.logprob_difference_mean:.1e}"]
        cells += [f"{ends.logprob_difference_max:.1e}", f"{ends.num_current_tokens:,}"]
        lines.append(f"| {ends.mode.name} | {' | '.join(cells)} |")
    means = [fmean(ends.differences) for ends in found if not ends.mode.keep_cache]
    apart = max(means) - min(means)
    verdict = "reached" if apart <= GOAL_POINTS else "not reached"
    lines += [
        "",
        f"Goal: the modes that clear the cache within {GOAL_POINTS:g} points of each other, mean over seeds: {verdict} "
        f"({apart:.1f}). The logprobs of servers and trainer are compared over the trained tokens whose "
        "weights are those in training.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Makes the missing runs, and writes the results after every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--long-tail", action="store_true", help="the asynchronous runs' agents call a tool with a long tail")
    parser.add_argument("--lr-schedule", choices=[schedule.value for schedule in Schedule], default=Schedule.constant.value)
    parser.add_argument("--output", type=Path, default=Path("results/staleness"))
    options = parser.parse_args()
    mode_of = partial(Mode, lr_schedule=options.lr_schedule)
    modes = [mode_of(staleness=number, long_tail=options.long_tail and number > 0) for number in options.staleness]
    if not options.long_tail:
        modes += [mode_of(staleness=number, keep_cache=True) for number in options.staleness if number > 0][:1]
    result, text = Result(title="Staleness with a long tail" if options.long_tail else "Staleness"), ""
    for number, seed in enumerate(options.seeds, start=1):
        for mode in modes:
            run(mode, seed=seed, steps=options.steps)
        found = [ends_of(mode, modes[0], options.seeds[:number], steps=options.steps) for mode in modes]
        rows: list[dict[str, Any]] = [asdict(ends) for ends in found]
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        text = page(found, options.seeds[:number], result)
        options.output.with_suffix(".md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
