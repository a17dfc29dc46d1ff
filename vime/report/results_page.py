"""The results page of a method: published tables with their sources, our complete runs, and the rows that have not been run.

Published numbers are data (`results/papers/METHOD.yaml`); ours are read from run folders, and an incomplete one is refused with
its name. A column that holds averages and best runs says which is which.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vime.evaluation.conditions import SCAFFOLD, label_of
from vime.files.command_line import command
from vime.hooks import load_named
from vime.report.columns import Cell, Column, Items, Measured, cells
from vime.report.items import read_evaluation
from vime.report.metrics_file import read_metrics
from vime.report.summary import read_summary, summarize_runs

NOT_RUN = "not run"
OF_ONE_START = ("output_dir=", "logger.group=")
"""Words of a run that may differ in another run of the same command."""
CURVE_POINTS = 9
"""Points of the training curve in the page; the run folder has them all."""


@dataclass(kw_only=True, slots=True)
class OurRun:
    """One complete run folder.

    `scores` are by data set and row as in `summary.json`; `curve` is the training reward as [step, reward] pairs.
    Example: `OurRun(name="memagent_paper_tiny", scores={"docs_20": {"scaffold": {"mean": 7.0, …}}}, about={"commit": …})`.
    """

    name: str
    method: str
    model: str
    scores: dict[str, dict[str, dict[str, Any]]]
    about: dict[str, Any]
    curve: list[list[float]] = field(default_factory=list)
    items: dict[tuple[str, str], Items] = field(default_factory=dict)
    """Items of all runs of the evaluation, by data set and row."""
    eval_log: str | None = None
    """The hook of the run's method that makes metrics of items."""

    def measured(self, row: str) -> Measured:
        """Measurements of one row by the run."""
        items = {dataset: found for (dataset, name), found in self.items.items() if name == row}
        return Measured(
            scores={dataset: rows[row] for dataset, rows in self.scores.items() if row in rows},
            items=items,
            base={dataset: found for (dataset, name), found in self.items.items() if name == SCAFFOLD},
            log=self._log if self.eval_log else None,
        )

    def _log(self, items: Any) -> Any:
        """Metrics of items by the run's own hook, which is loaded when a column asks for them: it may be gone by now."""
        return load_named("method.eval_log", str(self.eval_log))(None, items).metrics


def read_published(path: Path) -> dict[str, Any]:
    """The published tables of a method.

    Raises `ValueError`, naming the row, if it lacks a value for a column, or a source.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    for table in data["tables"]:
        if table["datasets"] and len(table["datasets"]) != len(table["columns"]):
            raise ValueError(
                f"{path}: {table['title']}: {len(table['columns'])} entries of datasets are needed, one for each column"
            )
        for row in table["published"]:
            if len(row["values"]) != len(table["columns"]) or not row.get("source"):
                raise ValueError(
                    f"{path}: {table['title']}, {row['name']}: {len(table['columns'])} values and a source are needed"
                )
    return data


def read_our_run(path: Path) -> OurRun:
    """A complete run.

    Raises `IncompleteRunError`, by name, if items are missing; `FileNotFoundError` if the folder holds no run.
    """
    evaluation = read_evaluation(path)
    config, summary = evaluation.config, read_summary(path) or {}
    runs: dict[tuple[str, str], list[Any]] = {}
    for score in evaluation.scores():
        runs.setdefault((score.dataset, score.row), []).append(score)
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for (dataset, row), found in runs.items():
        scores.setdefault(dataset, {})[row] = summarize_runs(found, config["evaluation"]["pass_at"])
    return OurRun(
        name=config["name"],
        method=config["method"]["name"],
        model=config["model"]["name"],
        scores=scores,
        about=_about(path, config, summary),
        curve=[[row["step"], row["reward/mean"]] for row in read_metrics(path / "metrics.jsonl") if "reward/mean" in row],
        items={
            (dataset, row): [_without_tokens(item) | {"dataset": dataset} for run in found for item in run]
            for (dataset, row), found in evaluation.items.items()
        },
        eval_log=config["method"]["eval_log"],
    )


def _without_tokens(item: dict[str, Any]) -> dict[str, Any]:
    """A finished item with the texts and metadata of its samples alone."""
    samples = [{name: sample.get(name) for name in ("response", "metadata")} for sample in item.get("samples", [])]
    return item | {"samples": samples}


def _about(path: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    def text(name: str) -> str:
        file = path / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    words = yaml.safe_load(text("overrides.yaml")) or []
    machine = yaml.safe_load(text("machine.json")) or {}
    hardware = ", ".join(machine.get("gpus") or []) or f"{machine.get('num_usable_cores')} cores of {machine.get('processor')}"
    evaluation = config["evaluation"]
    return {
        "run": config["name"],
        "seed": config["seed"],
        "commit": (text("commit.txt").split("\n") or [""])[0][:12] + (" with changes" if text("code.diff").strip() else ""),
        "command": command([word for word in words if not word.startswith(OF_ONE_START)]),
        "hardware": f"{hardware}, {machine.get('memory_gib')} GiB",
        "date": summary.get("finished", "")[:10],
        "sampling": f"temperature {evaluation['temperature']:g}, top-p {evaluation['top_p']:g}, {evaluation['num_runs']} runs",
        "minutes": round(summary["wall_seconds"] / 60, 1) if "wall_seconds" in summary else None,
        "steps": summary.get("num_steps"),
        "checkpoint": Path(config["model"]["checkpoint"]).name
        if config["model"]["checkpoint"].startswith("/")
        else config["model"]["checkpoint"],
    }


def build_page(method: str, published: dict[str, Any], runs: list[OurRun], *, small: str = "tiny") -> dict[str, Any]:
    """The page as data: published tables with our rows, our small-scale tables, and where every row of ours comes from."""
    mine = [run for run in runs if run.method == method]
    tables = [
        {**{key: table[key] for key in ("title", "about", "score", "columns", "published")}, "ours": _ours(table, mine)}
        for table in published["tables"]
    ]
    return {
        "method": method,
        "title": published["title"],
        "tables": tables,
        "small": [_small_table(run) for run in mine if run.model == small],
        "runs": [run.about for run in mine],
        "curves": [
            {"run": run.name, "seed": run.about["seed"], "command": run.about["command"], "points": thin(run.curve)}
            for run in mine
            if run.curve
        ],
    }


def _ours(table: dict[str, Any], runs: list[OurRun]) -> list[dict[str, Any]]:
    rows = []
    for planned in table["ours"]:
        command = f"python -m vime.run +experiment={planned['experiment']}"
        found = [run for run in runs if run.name == planned["experiment"] and _has(run, planned["row"])]
        if not found:
            rows.append({"name": planned["name"], "command": command, "state": NOT_RUN})
        for run in found:
            values = _values(run, planned, table)
            rows.append({"name": planned["name"], "command": run.about["command"], "seed": run.about["seed"], "values": values})
    return rows


def _values(run: OurRun, planned: dict[str, Any], table: dict[str, Any]) -> list[Cell | None]:
    columns: list[Column] = table["datasets"] or [None] * len(table["columns"])
    return cells(columns, run.measured(planned["row"]), planned.get("score", table["score"]))


def _has(run: OurRun, row: str) -> bool:
    return any(row in rows for rows in run.scores.values())


def _cell(score: dict[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """Mean and deviation over runs of the kind of score that the table is of."""
    if score is None:
        return None
    chosen = score if kind == "strict" else score["lenient"]
    return {"mean": chosen["mean"], "sd": chosen["sd"], "num_runs": score["num_runs"], "num_items": score["num_items"]}


def _small_table(run: OurRun) -> dict[str, Any]:
    rows = list(dict.fromkeys(row for found in run.scores.values() for row in found))
    return {
        "run": run.name,
        "seed": run.about["seed"],
        "command": run.about["command"],
        "columns": list(run.scores),
        "rows": [
            {
                "name": label_of(row),
                "strict": [_cell(found.get(row), "strict") for found in run.scores.values()],
                "lenient": [_cell(found.get(row), "lenient") for found in run.scores.values()],
                "standard_error": [found[row]["standard_error"] if row in found else None for found in run.scores.values()],
                "num_failed": sum(found[row]["num_failed"] for found in run.scores.values() if row in found),
            }
            for row in rows
        ],
    }


def thin(curve: list[list[float]]) -> list[list[float]]:
    """At most `CURVE_POINTS` points, first and last among them."""
    if len(curve) <= CURVE_POINTS:
        return curve
    return [curve[round(i * (len(curve) - 1) / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS)]
