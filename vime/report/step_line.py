"""The line of a step: fixed width, the same numbers in the same places, with the time that is left."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean

WINDOW = 10
"""Steps over which the time of one is averaged for the ETA."""
SHARES = {
    "gen": ("time/generation_share",),
    "train": ("time/training_share",),
    "sync": ("time/sync_share",),
    "wait": ("time/waiting_share", "time/evaluation_share"),
}


class Eta:
    """Estimates the time left from the durations of the last steps, without the evaluations between them."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def after(self, step: int, seconds: float) -> float:
        """Seconds left after `step`, which took `seconds`."""
        self._seconds.append(seconds)
        return fmean(self._seconds) * max(0, self._num_steps - step)


def step_line(
    step: int, num_steps: int, metrics: Mapping[str, float], *, remaining_seconds: float, width: int | None = None
) -> str:
    """The line of one step; with `width` the less important fields are left out until it fits."""
    digits = len(str(num_steps))
    solved = metrics.get("reward/strict", metrics.get("reward/solved"))
    shares = " ".join(f"{label} {_percent(_total(metrics, names), 3, 0)}" for label, names in SHARES.items())
    difference = metrics.get("train/logprob_difference_max", math.nan if "train/num_current_tokens" in metrics else None)
    fields: list[tuple[int, str | None]] = [
        (0, f"step {step:>{digits}}/{num_steps}"),
        (1, _number("reward", metrics.get("reward/mean"), 6, "6.3f")),
        (3, None if solved is None else f"solved {_percent(solved, 5, 1)}"),
        (2, _number("loss", metrics.get("train/loss"), 8, "8.4f")),
        (4, _number("grad", metrics.get("train/grad_norm"), 7, "7.3f")),
        (6, _number("kl", metrics.get("train/kl"), 7, "7.4f")),
        (7, _number("len", metrics.get("rollout/response_tokens_mean"), 6, "6.1f")),
        (8, _number("diff", difference, 7, "7.0e")),
        (5, shares),
        (0, _number("", metrics.get("time/step_seconds"), 6, "6.1f", " s")),
        (0, f"eta {duration(remaining_seconds):>6}"),
        (1, _mishaps(metrics)),
    ]
    shown = [(priority, text) for priority, text in fields if text is not None]
    while width is not None and _width(shown) > width and max(priority for priority, _ in shown) > 0:
        shown.remove(max(shown, key=lambda field: field[0]))
    return " | ".join(text for _, text in shown)


def _mishaps(metrics: Mapping[str, float]) -> str | None:
    """`3 failed, 5 retried`: rollouts that failed and new attempts since the last step; None without any."""
    counts = {"failed": metrics.get("rollout/num_failed", 0), "retried": metrics.get("rollout/num_retries", 0)}
    return ", ".join(f"{count:.0f} {what}" for what, count in counts.items() if count) or None


def duration(seconds: float) -> str:
    """`48s`, `3m20s`, `2h05m`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _width(fields: list[tuple[int, str]]) -> int:
    return sum(len(text) for _, text in fields) + 3 * (len(fields) - 1)


def _number(label: str, value: float | None, width: int, form: str, unit: str = "") -> str | None:
    """`loss  0.1234`; very large and very small values in powers of ten; None if the metric is absent.

    NaN, which marks a metric that only this step lacks, is shown as a dash.
    """
    if value is None:
        return None
    if math.isnan(value):
        return f"{label} {'-':>{width}}{unit}".lstrip()
    text = f"{value:{form}}"
    if form.endswith("f") and value != 0 and (len(text) > width or not float(text)):
        text = f"{value:.0e}"
    return f"{label} {text:>{width}}{unit}".lstrip() if label else f"{text:>{width}}{unit}"


def _total(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    found = [metrics[name] for name in names if name in metrics]
    return sum(found) if found else None


def _percent(share: float | None, width: int, digits: int) -> str:
    return " " * width + "-" if share is None else f"{100 * share:{width}.{digits}f}%"
