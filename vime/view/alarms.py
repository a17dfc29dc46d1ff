"""Alarms: observations in the curves of a run that deserve a look, each with a sentence on its possible meaning."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from vime.report.metrics_file import Curve

WINDOW = 10
"""Steps over which the last values are averaged."""
MIN_STEPS = 20
"""A curve of fewer steps is neither flat nor collapsed."""
REWARD = "reward/mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One observation.

    Example: `Alarm(name="entropy is gone", step=80, metric="train/entropy", seen="0.0004 nats, 0.9 at the start", meaning="…")`.
    """

    name: str
    step: int
    """The last step that it was seen at."""
    metric: str
    seen: str
    meaning: str


def alarms(curves: dict[str, Curve]) -> list[Alarm]:
    """All alarms of a run, in a fixed order."""
    found = [rule(curves) for rule in RULES]
    return [alarm for alarm in found if alarm is not None]


def flat(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the reward of the last steps equals that of the first steps within noise."""
    values = _values(curves, REWARD)
    if len(values) < MIN_STEPS:
        return None
    first, last = values[:WINDOW], values[-WINDOW:]
    noise = math.hypot(stdev(first), stdev(last)) / math.sqrt(WINDOW)
    if abs(fmean(last) - fmean(first)) > 2 * noise + 1e-9:
        return None
    seen = f"{fmean(first):.3g} in the first {WINDOW} steps, {fmean(last):.3g} in the last"
    meaning = "Nothing is learned that the reward sees: look at groups without signal, the learning rate, and some rollouts."
    return _alarm(curves, "the reward is flat", REWARD, seen, meaning)


def collapsed(curves: dict[str, Curve]) -> Alarm | None:
    """The reward of the last steps is below half of the best window."""
    values = _values(curves, REWARD)
    if len(values) < MIN_STEPS:
        return None
    windows = [fmean(values[start : start + WINDOW]) for start in range(len(values) - WINDOW + 1)]
    if max(windows) <= 0 or windows[-1] >= 0.5 * max(windows):
        return None
    seen = f"{windows[-1]:.3g} in the last {WINDOW} steps, {max(windows):.3g} at its best"
    meaning = "The policy broke or a tool or server did: compare rollouts of both times, and look at faults and stop reasons."
    return _alarm(curves, "the reward has collapsed", REWARD, seen, meaning)


def entropy(curves: dict[str, Curve]) -> Alarm | None:
    """The entropy is below a tenth of its value at the start."""
    values = _values(curves, "train/entropy")
    if len(values) < 2 * WINDOW or fmean(values[-WINDOW:]) >= 0.1 * fmean(values[:WINDOW]):
        return None
    seen = f"{fmean(values[-WINDOW:]):.3g} nats a token, {fmean(values[:WINDOW]):.3g} at the start"
    meaning = (
        "Rollouts of a group have become alike, so there is little left to learn from: raise the clip range or the temperature."
    )
    return _alarm(curves, "the entropy is gone", "train/entropy", seen, meaning)


def difference(curves: dict[str, Curve]) -> Alarm | None:
    """Servers and trainer disagree about logprobs, and more than they did."""
    metric = "train/logprob_difference_mean"
    values = _values(curves, metric)
    if len(values) < 2 or fmean(values[-WINDOW:]) < max(1e-3, 3 * fmean(values[:WINDOW][: len(values) // 2])):
        return None
    seen = f"{fmean(values[-WINDOW:]):.3g} nats a token, {fmean(values[:WINDOW]):.3g} at the start"
    meaning = (
        "Servers sample from another policy than the one that is trained: precision, a kernel, or weights that did not arrive."
    )
    return _alarm(curves, "the logprob difference rises", metric, seen, meaning)


def failures(curves: dict[str, Curve]) -> Alarm | None:
    """More than a twentieth of the last rollouts failed."""
    failed, ended = _values(curves, "rollout/num_failed")[-WINDOW:], _values(curves, "rollout/num_rollouts")[-WINDOW:]
    if not sum(failed) or sum(failed) < 0.05 * (sum(failed) + sum(ended)):
        return None
    seen = f"{sum(failed):.0f} of {sum(failed) + sum(ended):.0f} rollouts in the last {len(failed)} steps"
    meaning = (
        "They are left out of their groups, so the rest may be a biased choice: filter rollouts by failed, and read an error."
    )
    return _alarm(curves, "rollouts fail", "rollout/num_failed", seen, meaning)


def signal(curves: dict[str, Curve]) -> Alarm | None:
    """All rewards are equal in more than half of the last groups."""
    metric = "train/groups_without_signal_share"
    values = _values(curves, metric)[-WINDOW:]
    if not values or fmean(values) <= 0.5:
        return None
    seen = f"{fmean(values):.0%} of the groups in the last {len(values)} steps"
    meaning = "These groups teach nothing: the prompts are too easy or too hard for this policy, or the reward is too coarse."
    return _alarm(curves, "groups without signal", metric, seen, meaning)


def truncated(curves: dict[str, Curve]) -> Alarm | None:
    """More than a third of the last rollouts ran into a limit."""
    metric = "rollout/truncated_share"
    values = _values(curves, metric)[-WINDOW:]
    if not values or fmean(values) <= 1 / 3:
        return None
    seen = f"{fmean(values):.0%} of the rollouts in the last {len(values)} steps"
    meaning = "The limits of tokens, turns or time decide the reward: look at what these rollouts do at their ends."
    return _alarm(curves, "rollouts run into limits", metric, seen, meaning)


def skipped(curves: dict[str, Curve]) -> Alarm | None:
    """An update was not made."""
    metric = "train/num_skipped_updates"
    values = _values(curves, metric)
    if not sum(values):
        return None
    meaning = "Loss or gradient was not a finite number: look at the logprobs and rewards of those steps."
    return _alarm(curves, "updates were skipped", metric, f"{sum(values):.0f} in {len(values)} steps", meaning)


def empty(curves: dict[str, Curve]) -> Alarm | None:
    """A step trained no token."""
    metric = "train/num_tokens"
    values = _values(curves, metric)
    if all(values):
        return None
    meaning = (
        "Such a step changes no weights: either `generate` masks all that the model sampled, or its rollouts sampled nothing."
    )
    return _alarm(curves, "steps train no token", metric, f"{values.count(0)} in {len(values)} steps", meaning)


RULES: tuple[Callable[[dict[str, Curve]], Alarm | None], ...] = (
    *(collapsed, flat, entropy, difference, failures, signal, truncated, skipped, empty),
)


def _values(curves: dict[str, Curve], metric: str) -> list[float]:
    return [value for value in curves.get(metric, ([], []))[1] if value is not None and math.isfinite(value)]


def _alarm(curves: dict[str, Curve], name: str, metric: str, seen: str, meaning: str) -> Alarm:
    return Alarm(name=name, step=curves[metric][0][-1], metric=metric, seen=seen, meaning=meaning)
