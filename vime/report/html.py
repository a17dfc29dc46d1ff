"""Writes `report.html` from the files in a run folder alone: one page that needs no network, for unfinished runs as well.

python -m vime.report.html outputs/latest
"""

import argparse
import json
import logging
from collections import defaultdict
from html import escape
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from vime.evaluation.conditions import SCAFFOLD, TRAINED, shown_rows
from vime.files.jsonl import read_lines, write_text
from vime.report import axes
from vime.report.alarms import alarms
from vime.report.ending import read_ending
from vime.report.log_section import eval_log_section
from vime.report.metrics_file import Curve, curves, read_metrics
from vime.report.run_directory import CONFIG, read_config
from vime.report.score_tables import pass_table, score_table, temperature_table
from vime.report.sections import (
    chart_grid,
    key_value_details,
    rows_table,
    score_charts,
    still_metrics,
    text_details,
    training_charts,
)
from vime.report.step_line import WINDOW, duration
from vime.report.summary import RunScore, read_scores, read_summary, summarize_runs
from vime.report.tables import measured_rows
from vime.surroundings import settle

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("template.html")
MAX_FAULTS = 200


def write_report(run_path: Path) -> Path:
    """Writes the page and returns its path.

    Raises `FileNotFoundError`, saying so, if the folder holds no run.
    """
    config = read_config(run_path)
    summary = read_summary(run_path)
    rows = read_metrics(run_path / "metrics.jsonl")
    datasets = summary["datasets"] if summary else partial_datasets(config, read_scores(run_path))
    labels = shown_rows(config["mode"], measured_rows(datasets.values()))
    found = with_ends(curves(rows), complete(datasets), num_steps=config["trainer"]["num_steps"])
    body = [
        _head(run_path, config, summary, rows),
        _ending(run_path),
        rows_table("Alarms", [{"alarm": a.name, "step": a.step, "seen": a.seen, "meaning": a.meaning} for a in alarms(found)]),
        score_table(datasets, labels),
        pass_table(datasets, labels),
        temperature_table(summary["untrained_temperatures"] if summary else {}),
        chart_grid(score_charts(complete(datasets), labels)),
        _section("Training", chart_grid(training_charts(found)) + still_metrics(found)),
        eval_log_section(_eval_logs(run_path / "evaluation"), list(datasets)),
        rows_table("Faults", read_lines(run_path / "faults.jsonl")[-MAX_FAULTS:]),
        _provenance(run_path),
    ]
    return write_page(run_path / "report.html", title=config["name"], body="".join(body))


def write_page(path: Path, *, title: str, body: str) -> Path:
    """Puts `body` into the page with its styles and script."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    sizes = {"width": axes.WIDTH, "top": axes.TOP, "bottom": axes.HEIGHT - axes.BOTTOM}
    page = template.substitute(title=escape(title), body=body, **sizes)
    write_text(path, page)
    return path


def partial_datasets(config: dict[str, Any], scores: list[RunScore]) -> dict[str, dict[str, Any]]:
    """Scores that an unfinished run knows: complete rows as in the summary, others only with how many runs are done."""
    evaluation = config["evaluation"]
    runs: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    for score in scores:
        if score.temperature == evaluation["temperature"]:
            runs[score.dataset, score.row].append(score)
    datasets: dict[str, dict[str, Any]] = {dataset["name"]: {} for dataset in config["data"]["evaluation"]} if runs else {}
    for (dataset, row), found in runs.items():
        complete = len(found) == evaluation["num_runs"] and len({score.num_items for score in found}) == 1
        progress = {"num_done": len(found), "num_runs": evaluation["num_runs"], "num_items": found[0].num_items}
        datasets.setdefault(dataset, {})[row] = summarize_runs(found) if complete else progress
    return datasets


def with_ends(found: dict[str, Curve], datasets: dict[str, dict[str, Any]], *, num_steps: int) -> dict[str, Curve]:
    """The curves; those of evaluations begin with the untrained agent and end with the trained one."""
    for name, rows in datasets.items():
        steps, values = found.get(f"evaluation/{name}", ([], []))
        if SCAFFOLD in rows and steps[:1] != [0] and (steps or TRAINED in rows):
            steps, values = [0, *steps], [rows[SCAFFOLD]["mean"], *values]
        if TRAINED in rows and steps[-1:] != [num_steps]:
            steps, values = [*steps, num_steps], [*values, rows[TRAINED]["mean"]]
        if steps:
            found[f"evaluation/{name}"] = steps, values
    return found


def complete(datasets: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows of each data set that have all of their runs."""
    return {name: {row: score for row, score in rows.items() if "mean" in score} for name, rows in datasets.items()}


def _head(run_path: Path, config: dict[str, Any], summary: dict[str, Any] | None, rows: list[dict[str, Any]]) -> str:
    steps = max((row["step"] for row in rows), default=0)
    ending = read_ending(run_path)
    state = ending.state if ending is not None else "finished" if summary else "unfinished"
    what = [
        config["mode"],
        config["method"]["name"],
        config["model"]["name"],
        config["algorithm"]["name"],
        str(run_path.absolute()),
    ]
    title = f'<h1>{escape(config["name"])}<span class="state {state}">{state}</span></h1>'
    return (
        title
        + f'<p class="sub">{escape(" · ".join(text for text in what if text))}</p>'
        + _tiles(config, summary, steps, rows, ended=ending is not None)
    )


def _tiles(config: dict[str, Any], summary: dict[str, Any] | None, steps: int, rows: list[dict[str, Any]], *, ended: bool) -> str:
    tiles = {"steps": f"{steps} / {config['trainer']['num_steps']}"} if config["mode"] == "train" else {}
    if summary:
        first = summary["first_step_seconds"]
        tiles["wall time"] = duration(summary["wall_seconds"])
        tiles["to the first step"] = "-" if first is None else duration(first)
        tiles["rollouts"] = f"{summary['num_rollouts']:,}"
        tiles["failed rollouts"] = f"{summary['num_failed_rollouts']:,}"
    elif rows:
        rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
        seconds = [row["time/step_seconds"] for row in rows if "time/step_seconds" in row]
        tiles |= {"last reward": f"{rewards[-1]:.3f}"} if rewards else {}
        tiles |= {"last step": f"{seconds[-1]:.1f} s"} if seconds else {}
        if seconds and not ended:
            tiles["left, as the last steps went"] = duration(fmean(seconds[-WINDOW:]) * (config["trainer"]["num_steps"] - steps))
    timed = [row for row in rows if "time/step_seconds" in row and "train/num_tokens" in row]
    if timed:
        speed = sum(row["train/num_tokens"] for row in timed) / max(sum(row["time/step_seconds"] for row in timed), 1e-9)
        tiles["trained tokens a second"] = f"{speed:,.0f}"
    cells = [f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in tiles.items()]
    return f'<div class="tiles">{"".join(cells)}</div>'


def _ending(run_path: Path) -> str:
    """The error that ended the run and the command that goes on, on top of everything else."""
    if (ending := read_ending(run_path)) is None:
        return ""
    first, *more = ending.text.splitlines() or [""]
    shown = [*([f"{ending.error}: {first}"] if ending.text else []), *more]
    lines = "".join(f"<p>{escape(line)}</p>" for line in ending.lines())
    return f'<div class="card ending"><pre>{escape(chr(10).join(shown))}</pre>{lines}</div>'


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _eval_logs(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def _provenance(run_path: Path) -> str:
    def text(name: str) -> str:
        file = run_path / name
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    return _section(
        "Where it comes from",
        text_details("Command-line words", text("overrides.yaml"))
        + text_details("Configuration", text(CONFIG))
        + key_value_details("Versions", json.loads(text("versions.json") or "{}"))
        + key_value_details("Machine at the start", json.loads(text("machine.json") or "{}"))
        + text_details("Commit", text("commit.txt"))
        + text_details("Changes since the commit", text("code.diff")),
    )


def main() -> None:
    """Rebuilds the report of one run folder."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder, for example outputs/latest")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run_path = parser.parse_args().run
    try:
        logger.info("%s", write_report(run_path))
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
