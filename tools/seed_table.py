"""Writes one table for all seeds of a recipe: every metric of its evaluation, mean ± standard deviation over the seeds.

    python tools/seed_table.py outputs/smollm2_sst2/… outputs/smollm2_trec/… --title "A real model" --out results/real_model

Runs of one name are the seeds of one recipe; two of the same seed are refused, and so is an incomplete run. PATH.md has the
tables, what each run ended with and where it comes from, PATH.json all values, PATH_NAME.svg the training reward of each seed. A
failed item counts as 0. With --keep the page keeps its other recipes.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from svg_chart import standalone_chart

from vime.evaluation.conditions import label_of
from vime.files.jsonl import write_text
from vime.report.charts import Series
from vime.report.columns import Items
from vime.report.results_page import OurRun, read_our_run
from vime.report.run_directory import find_runs
from vime.report.summary import IncompleteRunError
from vime.surroundings import settle

ABOUT = ("seed", "commit", "date", "hardware", "checkpoint", "steps", "minutes", "sampling")
INTRODUCTION = """\
Percent of all items, failures included as 0, {over}. Written by
`python tools/seed_table.py RUN…`.
"""


def shares(items: Items) -> dict[str, float]:
    """Means of all metrics of items, in percent; an item without a metric counts as 0. {"strict": 81.5, "lenient": 82.0}"""
    names = dict.fromkeys(name for item in items for name in item["metrics"])
    return {name: 100 * fmean(item["metrics"].get(name, 0.0) for item in items) for name in names}


def section(name: str, runs: list[OurRun], metrics: list[str] | None = None) -> dict[str, Any]:
    """One recipe: by data set and row, the value of each of these metrics (of all by default) of each seed.

    Raises `ValueError` if a seed occurs twice.
    """
    seeds = [run.about["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name}: give one run of each seed, not {', '.join(map(str, seeds))}")
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        for (dataset, row), items in run.items.items():
            found = shares(items)
            for metric, value in ((name, found[name]) for name in metrics or found if name in found):
                scores.setdefault(dataset, {}).setdefault(row, {}).setdefault(metric, []).append(value)
    return {
        "name": name,
        "scores": scores,
        "num_items": {dataset: len(items) for run in runs for (dataset, _), items in run.items.items()},
        "curves": [{"seed": run.about["seed"], "points": run.curve} for run in runs],
        "runs": [run.about for run in runs],
    }


def markdown(sections: list[dict[str, Any]], *, title: str, out: Path) -> str:
    """The page."""
    lines = [f"# {title}", ""]
    for one in sections:
        lines += [f"## {one['name']}", INTRODUCTION.format(over=_over(len(one["runs"])))]
        for dataset, rows in one["scores"].items():
            metrics = list(dict.fromkeys(metric for found in rows.values() for metric in found))
            lines += [
                _line([f"{dataset}, {one['num_items'][dataset]} items", *metrics]),
                _line(["---", *["---:"] * len(metrics)]),
            ]
            lines += [
                _line([label_of(row), *(_spread(found.get(metric, [])) for metric in metrics)]) for row, found in rows.items()
            ]
            lines += [""]
        lines += [*_each_run(one), f"![Training reward by step]({out.name}_{one['name']}.svg)", ""]
        lines += [_line(ABOUT), _line(["---"] * len(ABOUT))]
        lines += [_line([str(about[name]) for name in ABOUT]) for about in one["runs"]]
        lines += ["", *dict.fromkeys(f"`{about['command']}`" for about in one["runs"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _each_run(one: dict[str, Any]) -> list[str]:
    """A table of the strict score, or else of the first metric, in each run and of the lowest one; nothing of a single run."""
    seeds = [about["seed"] for about in one["runs"]]
    metrics = [name for rows in one["scores"].values() for found in rows.values() for name in found]
    if not metrics or len(seeds) == 1:
        return []
    metric = "strict" if "strict" in metrics else metrics[0]
    named = [f"seed {seed}" for seed in seeds]
    lines = [_line([f"{metric}, each run", *named, "worst"]), _line(["---", *["---:"] * len(seeds), "---"])]
    for dataset, rows in one["scores"].items():
        for row, found in rows.items():
            values = found.get(metric, [])
            if len(values) == len(seeds):
                worst = named[min(range(len(values)), key=values.__getitem__)]
                lines += [_line([f"{dataset}, {label_of(row)}", *(f"{value:.1f}" for value in values), worst])]
    return [*lines, ""]


def _over(num_seeds: int) -> str:
    return f"mean ± standard deviation over {num_seeds} seeds" if num_seeds > 1 else "of one seed"


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Writes the page of the runs on the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or sweeps of them")
    parser.add_argument("--title", default="Seeds", help="heading of the page")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="path of the page, without its ending")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="the columns (all metrics); each must be a share of the items"
    )
    parser.add_argument("--keep", action="store_true", help="keep the recipes of the page that these runs are not of")
    given = parser.parse_args(arguments)
    by_name: dict[str, list[OurRun]] = {}
    try:
        for path in find_runs(given.runs):
            run = read_our_run(path)
            by_name.setdefault(run.name, []).append(run)
        sections = [
            section(name, sorted(runs, key=lambda run: run.about["seed"]), given.metrics) for name, runs in by_name.items()
        ]
        kept = json.loads(given.out.with_suffix(".json").read_text()) if given.keep else []
    except (IncompleteRunError, FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    for one in sections:
        lines = [
            Series(
                label=f"seed {curve['seed']}",
                x=[step for step, _ in curve["points"]],
                y=[reward for _, reward in curve["points"]],
            )
            for curve in one["curves"]
        ]
        chart = standalone_chart(f"Training reward: {one['name']}", lines, x_label="step")
        write_text(given.out.with_name(f"{given.out.name}_{one['name']}.svg"), chart)
    sections = [*(one for one in kept if one["name"] not in by_name), *sections]
    write_text(given.out.with_suffix(".json"), json.dumps(sections, indent=1) + "\n")
    write_text(given.out.with_suffix(".md"), markdown(sections, title=given.title, out=given.out))
    Console().print(f"{given.out.with_suffix('.md')}, {sum(len(one['runs']) for one in sections)} runs")


if __name__ == "__main__":
    main()
