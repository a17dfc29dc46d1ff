"""Writes results/reproductions.md: which command makes each published row, what it needs, and how far it was tried.

    python tools/reproductions.py
    python tools/reproductions.py --rehearsed RUN…     # first notes rehearsals (`rehearse=true`) in results/rehearsals.json

Rows and experiments come from results/papers/METHOD.yaml and the experiments themselves. Each experiment is composed and checked
as by `mode=plan`. Hours are estimates: floating-point operations of the lengths that `effort` assumes, divided by the operations
per hour of the experiment's GPUs at the shares below. `run` is shown only where results/METHOD.json holds the row, and
`rehearsed` only where results/rehearsals.json has its experiment.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rehearsals import note_rehearsals, read_rehearsals, rehearsal_lines
from rich.console import Console

from vime.config import DatasetConfig, Mode, RunConfig
from vime.evaluation.conditions import SINGLE_TURN, rows_of
from vime.files.jsonl import write_text
from vime.model.size import num_parameters
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems
from vime.report.results_page import NOT_RUN, read_published
from vime.surroundings import settle

RESULTS = Path(__file__).resolve().parent.parent / "results"
METHODS = ("agentflow", "memagent", "toolorchestra")
PEAK, TRAINING_SHARE, GENERATION_SHARE = 989e12, 0.35, 0.10
"""bfloat16 operations a second of an H100, and the shares of it that training and generation are assumed to reach."""
OPERATIONS_READ, OPERATIONS_TRAINED = 2, 8
"""Operations per parameter and token: one pass; a pass, its gradient, and a pass of the reference."""
PLANNED, REHEARSED, RUN = "planned", "rehearsed", "run"
INTRODUCTION = """\
# What reproduces each published row
Written by `python tools/reproductions.py`. "Planned" means that the experiment composes and passes every check of `mode=plan`;
"rehearsed" that the experiment has also gone from its configuration to its filled table on a random small model with scripted
replies (`rehearse=true`; the list is at the end); nothing here has been run at this size unless it says "run". Hours are
estimated, and nobody has measured them: on H100 GPUs (989 TFLOP/s in bfloat16) that reach 35 % of it in training and 10 % in
generation, from lengths that stand below each table of commands. Expect the order of magnitude, no more. The data are names for
`tools/prepare_data.py`, files of the Hub, `tau2-bench`, which is a package, and `wiki-18`, the passages of Search-R1.
"""


@dataclass(kw_only=True, slots=True)
class Effort:
    """The amount that a rollout of a method computes; the assumptions of `effort` in results/papers/METHOD.yaml."""

    about: str
    calls: int
    prompt_tokens: int
    reply_tokens: int
    single_turn_tokens: int
    evaluation_calls: dict[str, int]
    frozen_calls_per_call: int = 0
    frozen_billion_parameters: float = 0.0
    items: dict[str, int] = field(default_factory=dict)


def training_hours(config: RunConfig, effort: Effort) -> float:
    """Hours of generation and training, without evaluations."""
    if config.mode is Mode.eval:
        return 0.0
    rollouts = config.trainer.num_steps * config.rollout.num_prompts * config.rollout.num_samples_per_prompt
    tokens = rollouts * effort.calls * (effort.prompt_tokens + effort.reply_tokens)
    trained = tokens * num_parameters(config.model) * OPERATIONS_TRAINED / TRAINING_SHARE
    return _hours(config, trained + _generated(config, effort, rollouts * effort.calls))


def evaluation_hours(config: RunConfig, effort: Effort, published: dict[str, int]) -> float:
    """Hours of the evaluation before and after training, or of the evaluation alone."""
    total = 0.0
    for dataset in config.data.evaluation:
        runs = config.evaluation.num_runs * (_items(dataset, effort, published))
        for row in rows_of(config):
            if row.startswith(SINGLE_TURN):
                tokens = runs * (min(effort.single_turn_tokens, _document_tokens(dataset.name, effort)) + effort.reply_tokens)
                total += tokens * num_parameters(config.model) * OPERATIONS_READ / GENERATION_SHARE
            else:
                calls = effort.evaluation_calls.get(dataset.name, effort.evaluation_calls.get("default", effort.calls))
                total += _generated(config, effort, runs * calls)
    return _hours(config, total)


def _generated(config: RunConfig, effort: Effort, calls: int) -> float:
    """Operations of generation over the peak's share: calls of the trained model, and of frozen models beside them."""
    parameters = num_parameters(config.model) + effort.frozen_calls_per_call * effort.frozen_billion_parameters * 1e9
    return calls * (effort.prompt_tokens + effort.reply_tokens) * parameters * OPERATIONS_READ / GENERATION_SHARE


def _document_tokens(name: str, effort: Effort) -> int:
    calls = effort.evaluation_calls.get(name)
    return effort.single_turn_tokens if calls is None else calls * effort.prompt_tokens


def _hours(config: RunConfig, operations: float) -> float:
    return operations / (PEAK * num_gpus(config) * 3600)


def _items(dataset: DatasetConfig, effort: Effort, published: dict[str, int]) -> int:
    stem = Path(dataset.path or "").stem
    return effort.items.get(dataset.name) or dataset.num_items or published.get(stem) or published.get(_ruler(stem)) or 0


def _ruler(stem: str) -> str:
    return stem.replace("eval_", "ruler_hqa_")


def num_gpus(config: RunConfig) -> int:
    """GPUs of all nodes."""
    return config.cluster.num_nodes * config.cluster.gpus_per_node


def needs_of(config: RunConfig) -> list[str]:
    """The data sets of a run: names for tools/prepare_data.py, files of the Hub, packages."""
    sets = [config.data.train] if config.mode is not Mode.eval else []
    found = [need for dataset in (*sets, *config.data.evaluation) for need in _needs(dataset.path, dataset.generator_args)]
    if config.retrieval.corpus:
        found.append(Path(str(config.retrieval.corpus)).stem)
    return list(dict.fromkeys(found))


def _needs(path: str | None, arguments: dict[str, Any]) -> list[str]:
    if path and path.startswith("hf://"):
        return ["files of " + "/".join(path.removeprefix("hf://datasets/").split("/")[:2]).partition("@")[0]]
    found = [Path(file).stem for file in (path, arguments.get("file")) if file]
    if "benchmark" in arguments:
        found.append(f"agentflow_{arguments['benchmark']}")
    if "domains" in arguments or arguments.get("tau2_domains"):
        found.append("tau2-bench")
    source = arguments.get("source") or {}
    return [*found, *(_needs(source.get("path"), source.get("generator_args", {})) if source else [])]


def build() -> dict[str, Any]:
    """Rows and experiments of all methods, as data."""
    sets = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
    published = {name: entry["num_published"] for name, entry in sets.items() if "num_published" in entry}
    found: dict[str, Any] = {}
    rehearsed = {one["experiment"] for one in read_rehearsals()}
    for method in METHODS:
        data = read_published(RESULTS / "papers" / f"{method}.yaml")
        page = json.loads((RESULTS / f"{method}.json").read_text(encoding="utf-8"))
        effort = Effort(**data["effort"])
        done = {(t["title"], row["name"]) for t in page["tables"] for row in t["ours"] if row.get("state") != NOT_RUN}
        experiments = {row["experiment"]: None for table in data["tables"] for row in table["ours"]}
        found[method] = {
            "title": data["title"],
            "about": effort.about,
            "experiments": [_experiment(name, effort, published) for name in experiments],
            "rows": [row for table in data["tables"] for row in _rows(table, done, rehearsed)],
        }
    return found


def _experiment(name: str, effort: Effort, published: dict[str, int]) -> dict[str, Any]:
    """Composes the experiment as it is, and checks it as `mode=plan` does. Raises `ConfigError` if it is refused."""
    compose_run([f"+experiment={name}", "mode=plan"], check=find_problems)
    config = compose_run([f"+experiment={name}"]).config
    return {
        "name": name,
        "gpus": f"{num_gpus(config)} of {config.cluster.gpu_memory_gib:g} GiB",
        "training_hours": training_hours(config, effort),
        "evaluation_hours": evaluation_hours(config, effort, published),
        "data": needs_of(config),
    }


def _rows(table: dict[str, Any], done: set[tuple[str, str]], rehearsed: set[str]) -> list[dict[str, Any]]:
    found = []
    left = [row for row in table["published"] if not any(row["name"] in planned.get("like", []) for planned in table["ours"])]
    for row in table["published"]:
        if row in left:
            continue
        ours = [planned for planned in table["ours"] if row["name"] in planned.get("like", [])]
        tried = REHEARSED if all(planned["experiment"] in rehearsed for planned in ours) else PLANNED
        tried = RUN if any((table["title"], planned["name"]) in done for planned in ours) else tried
        by = [f"{planned['experiment']}, {planned['row']}" for planned in ours]
        found.append({"table": table["title"], "names": [row["name"]], "source": row["source"], "by": by, "state": tried})
    if left:
        sources = "; ".join(dict.fromkeys(row["source"] for row in left))
        about = {"by": [], "state": f"not planned: {table['others']}"}
        found.append({"table": table["title"], "names": [row["name"] for row in left], "source": sources, **about})
    return found


def markdown(found: dict[str, Any], rehearsals: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [INTRODUCTION]
    for method in found.values():
        lines += [f"## {method['title']}: commands", "", "| command | GPUs | hours, training | hours, evaluation | data |"]
        lines += ["| --- | --- | ---: | ---: | --- |"]
        for one in method["experiments"]:
            hours = [_number(one[f"{kind}_hours"]) for kind in ("training", "evaluation")]
            command = f"`python -m vime.run +experiment={one['name']}`"
            lines.append(f"| {command} | {one['gpus']} | {hours[0]} | {hours[1]} | {', '.join(one['data'])} |")
        lines += ["", f"Assumed: {method['about']}", "", f"## {method['title']}: published rows", ""]
        lines += ["| table | row | source | experiment and its row | tried |", "| --- | --- | --- | --- | --- |"]
        for row in method["rows"]:
            names, by = "; ".join(row["names"]), "; ".join(row["by"]) or "–"
            lines.append(f"| {row['table']} | {names} | {row['source']} | {by} | {row['state']} |")
        lines.append("")
    lines += rehearsal_lines(rehearsals)
    return "\n".join(lines).rstrip() + "\n"


def _number(hours: float) -> str:
    return "–" if hours == 0 else f"{hours:.1f}" if hours < 10 else f"{hours:.0f}"


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Writes the page of the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproductions.md")
    parser.add_argument("--rehearsed", nargs="+", type=Path, default=[], metavar="RUN", help="folders of rehearsals to note")
    given = parser.parse_args(arguments)
    note_rehearsals(given.rehearsed)
    found = build()
    write_text(given.out, markdown(found, read_rehearsals()))
    number = sum(len(row["names"]) for method in found.values() for row in method["rows"])
    (console or Console(highlight=False)).print(f"{given.out}: {number} published rows", soft_wrap=True)


if __name__ == "__main__":
    main()
