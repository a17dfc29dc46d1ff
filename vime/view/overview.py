"""The overview of a run: what it is, how far it came, its scores, faults and alarms, and which curves belong together."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vime.evaluation.conditions import shown_rows
from vime.files.serialization import from_json
from vime.report.alarms import alarms
from vime.report.html import complete, with_ends
from vime.report.metrics_file import curves
from vime.report.run_directory import METRICS, STATUS, read_config
from vime.report.sections import EXACT, TIME_SHARES, panels
from vime.report.step_line import step_line
from vime.report.summary import read_summary
from vime.report.tables import measured_rows
from vime.view.comparison import scored
from vime.view.progress import SECONDS, seconds_left
from vime.view.runs import Run

MAX_FAULTS = 500
LOG_BYTES = 64 * 1024
"""Bytes shown of the end of a log."""
UNITS: tuple[tuple[str, str], ...] = (
    (r"tokens_per_second$", "tokens/s"),
    (r"_share$|clip_fraction$|hit_rate$|^utilization/(servers|trainer|overlapped)|^staleness/", "share"),
    (r"^seconds/|seconds", "s"),
    (r"bytes", "bytes"),
    (r"logprob|max_difference|mean_difference|entropy|train/kl", "nats"),
    (r"staleness_", "versions"),
    (r"^evaluation/", "% solved"),
    (r"^reward/", "reward"),
    (r"tokens", "tokens"),
    (r"loss$", "loss"),
    (r"grad_norm$", "norm"),
    (r"ratio|correction_weight", "ratio"),
    (r"train/lr$", "learning rate"),
    (r"advantage", "advantage"),
    (r"^rollout/turns|^count/|^stop/|num_|calls|requests|failures|retries|refused|fork_", "number"),
)
"""The unit of a metric by its name; the first that fits."""


def unit_of(metric: str) -> str:
    """The unit of a metric's values; empty if they have none."""
    return next((unit for pattern, unit in UNITS if re.search(pattern, metric)), "")


def overview(run: Run) -> dict[str, Any]:
    """The overview without the curves themselves, which `metrics_after` reads.

    Raises FileNotFoundError if the folder holds no run any more.
    """
    config, summary, rows = read_config(run.path), read_summary(run.path), run.lines(METRICS)
    datasets = scored(run, config, summary)
    num_steps = config["trainer"]["num_steps"]
    found = with_ends(curves(rows), complete(datasets), num_steps=num_steps)
    steps = [row for row in rows if SECONDS in row]
    left = seconds_left(steps, num_steps)
    return {
        "name": run.name,
        "state": run.state(),
        "ending": None if (ending := run.ending()) is None else {"lines": ending.lines(), "text": ending.text},
        "config": config,
        "summary": summary,
        "datasets": datasets,
        "labels": shown_rows(config["mode"], measured_rows(datasets.values())),
        "faults": run.lines("faults.jsonl")[-MAX_FAULTS:],
        "alarms": [asdict(alarm) for alarm in alarms(found)],
        "eta_seconds": left[-1] if left and not summary else None,
        "panels": [{"title": title, "metrics": names, "exact": title in EXACT} for title, names in panels(found).items()],
        "time_shares": TIME_SHARES,
        "units": {name: unit_of(name) for name in found},
        "step_lines": _step_lines(steps, num_steps, left),
        "eval_logs": _eval_logs(run),
        "service": json.loads(run.file(STATUS).read_text()) if (run.path / STATUS).exists() else None,
        "logs": sorted(path.name for path in (run.path / "logs").glob("*.log")),
    }


def metrics_after(run: Run, offset: int, inode: int) -> dict[str, Any]:
    """The rows of `metrics.jsonl` from a place on that an earlier answer named; from the beginning if it is another file now."""
    try:
        path = run.file(METRICS)
    except FileNotFoundError:
        return {"rows": [], "offset": 0, "inode": 0, "from": 0}
    with path.open("rb") as file:
        found = path.stat()
        start = offset if found.st_ino == inode and offset <= found.st_size else 0
        file.seek(start)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    rows = [from_json(line) for line in whole.splitlines() if line.strip()]
    return {"rows": rows, "offset": start + len(whole), "inode": found.st_ino, "from": start}


def log_end(run: Run, name: str) -> str:
    """The end of one of the run's logs. Raises FileNotFoundError for another name."""
    if name not in {path.name for path in (run.path / "logs").glob("*.log")}:
        raise FileNotFoundError(f"{run.name} has no log {name!r}")
    path = run.file(f"logs/{name}")
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LOG_BYTES, 0))
        return file.read().decode("utf-8", errors="replace")


def _step_lines(rows: list[dict[str, Any]], num_steps: int, left: list[float]) -> list[str]:
    """The lines that the console showed of the last steps."""
    recent = list(zip(rows, left))[-200:]
    return [step_line(row["step"], num_steps, numbers(row), remaining_seconds=seconds) for row, seconds in recent]


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a row that are numbers."""
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def _eval_logs(run: Run) -> dict[str, Any]:
    folder = run.path / "evaluation"
    names = [path.name for path in sorted(folder.glob("*.json"))]
    return {Path(name).stem: json.loads(run.file(f"evaluation/{name}").read_text(encoding="utf-8")) for name in names}
