"""The progress of a run: its step, the time that is left and its last reward, read from the end of `metrics.jsonl`."""

from dataclasses import dataclass
from typing import Any

from vime.files.serialization import from_json
from vime.report.run_directory import METRICS, read_config
from vime.report.step_line import Eta
from vime.view.runs import RUNNING, Run

END_BYTES = 256 * 1024
"""Bytes read of the end of the file: more than the steps from which the time that is left is estimated."""
SECONDS = "time/step_seconds"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """The progress of a run.

    Example: `RunProgress(step=12, num_steps=60, eta_seconds=200.0, reward=0.41)`.
    """

    step: int
    num_steps: int
    """Steps that the run is to train; 0 of one that trains nothing."""
    eta_seconds: float | None
    """Seconds left without evaluations; None of a run that is not at work, or whose first step has not ended."""
    reward: float | None


def progress(run: Run) -> RunProgress:
    """The progress of a run; the result is kept until its files change."""
    return run.kept("progress", lambda: _read(run))


def _read(run: Run) -> RunProgress:
    config = read_config(run.path)
    num_steps = config["trainer"]["num_steps"] if config["mode"] == "train" else 0
    steps = [row for row in _last_rows(run) if SECONDS in row]
    left = seconds_left(steps, num_steps)
    reward = steps[-1].get("reward/mean") if steps else None
    is_at_work = run.state() == RUNNING
    return RunProgress(
        step=steps[-1]["step"] if steps else 0,
        num_steps=num_steps,
        eta_seconds=left[-1] if left and is_at_work else None,
        reward=reward,
    )


def seconds_left(steps: list[dict[str, Any]], num_steps: int) -> list[float]:
    """Seconds left after each of these rows of steps, as the console estimated them."""
    eta = Eta(num_steps)
    return [eta.after(row["step"], row[SECONDS]) for row in steps]


def _last_rows(run: Run) -> list[dict[str, Any]]:
    try:
        path = run.file(METRICS)
    except FileNotFoundError:
        return []
    with path.open("rb") as file:
        start = max(path.stat().st_size - END_BYTES, 0)
        file.seek(start)
        data = file.read()
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [from_json(line) for line in lines[1 if start else 0 :] if line.strip()]
