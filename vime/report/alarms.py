"""Alarms: observations in the curves of a run that deserve a look, each with a sentence on its possible meaning.

The console shows an alarm at the step at which it is first seen (`Watch`), report and viewer those that still hold.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from vime.report.metrics_file import Curve

WINDOW = 10
"""Steps over which the last values are averaged."""
MIN_STEPS = 20
"""A curve of fewer steps is neither flat nor collapsed."""
SEAT = "reward/reward_"
"""Beginning of the metrics of seats, the rewards of one each."""
REWARD, ENTROPY = "reward/mean", "train/entropy"
SHORT = 5
"""Steps of a window in which something may have begun lately."""
LEAST_FALL, NOISE = 0.15, 5
"""Part of the best reward, and standard errors, that a fall takes: the best of many windows is partly chance."""
CLIMB = 4.0
"""Factor by which a gradient norm has climbed."""
CLIPPED = 0.2
ACCEPTANCE, ACCEPTED = "/draft_acceptance_rate", 0.7
"""The end of the metric's name, and the part of the acceptance at the start below which it has fallen."""
SAME = 0.8
TAUGHT = "train/taught_share"
"""Beginning of the metrics of what all teachers, or one of several, have taught."""
EVALUATION = "evaluation/"
LOST_POINTS = 10.0


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
    is_collapse: bool = False
    """True if the policy is being lost, so that going on is a waste (`rollout.on_collapse`)."""


def alarms(curves: dict[str, Curve]) -> list[Alarm]:
    """All alarms of a run, in a fixed order."""
    found = [rule(curves) for rule in RULES]
    return [alarm for alarm in found if alarm is not None]


def flat(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the reward of the last steps equals that of the first steps within noise, and could be higher."""
    values = _values(curves, REWARD)
    if len(values) < MIN_STEPS:
        return None
    first, last = values[:WINDOW], values[-WINDOW:]
    if _is_solved(curves) or _is_zero_sum(curves):
        return None
    noise = math.hypot(stdev(first), stdev(last)) / math.sqrt(WINDOW)
    if abs(fmean(last) - fmean(first)) > 2 * noise + 1e-9:
        return None
    seen = f"{fmean(first):.3g} in the first {WINDOW} steps, {fmean(last):.3g} in the last"
    meaning = "Nothing is learned that the reward sees: look at groups without signal, the learning rate, and some rollouts."
    return _alarm(curves, "the reward is flat", REWARD, seen, meaning)


def falling(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the reward of the last steps is further below its best steps than noise explains."""
    values = _values(curves, REWARD)
    if len(values) < WINDOW + SHORT:
        return None
    best = max((values[start : start + WINDOW] for start in range(len(values) - WINDOW - SHORT + 1)), key=fmean)
    last = values[-SHORT:]
    changes = [after - before for before, after in pairwise(values)]
    noise = stdev(changes) / math.sqrt(2) * math.sqrt(1 / WINDOW + 1 / SHORT)  # of a step, whatever the trend
    fall = fmean(best) - fmean(last)
    if fmean(best) <= 0 or fall <= max(NOISE * noise, LEAST_FALL * fmean(best)):
        return None
    seen = f"{fmean(last):.3g} in the last {SHORT} steps, {fmean(best):.3g} in the best {WINDOW}"
    meaning = (
        "The policy breaks, or a tool or server did: look at faults and stop reasons; otherwise go on from an earlier checkpoint "
        "with a lower or falling learning rate, less staleness, or another objective (algorithm=score_centering, ipo, dppo)."
    )
    return _alarm(curves, "the reward falls", REWARD, seen, meaning, is_collapse=True)


def gradient(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the gradient norm has climbed, and the reward has not reached its end."""
    metric = "train/grad_norm"
    values = _values(curves, metric)
    if len(values) < WINDOW + SHORT or _is_solved(curves):
        return None
    first, last = median(values[:WINDOW]), median(values[-SHORT:])
    if first <= 0 or last < CLIMB * first:
        return None
    seen = f"{last:.3g} in the last {SHORT} steps, {first:.3g} in the first {WINDOW}"
    meaning = "Updates become erratic: lower trainer.lr, let it fall (trainer.lr_schedule=linear), or lower trainer.clip_grad."
    return _alarm(curves, "the gradient norm climbs", metric, seen, meaning)


def clipped(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the objective has clipped or masked a large part of the last tokens."""
    meaning = (
        "The policy has moved far from the one that sampled: lower trainer.lr, rollout.max_staleness or "
        "trainer.num_updates_per_batch."
    )
    return _large_share(curves, "tokens are clipped", "train/clip_fraction", CLIPPED, "tokens", meaning)


def same_answer(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if most rollouts of the last batches end with one and the same text, and few of them are right."""
    metric = "rollout/same_answer_share"
    values = _values(curves, metric)
    if len(values) < SHORT or fmean(values[-SHORT:]) <= SAME or fmean(values[:SHORT]) > SAME or _is_solved(curves):
        return None
    seen = f"{fmean(values[-SHORT:]):.0%} of the rollouts in the last {SHORT} steps, {fmean(values[:SHORT]):.0%} in the first"
    meaning = (
        "The policy gives one answer whatever it is asked: look at the reward of that answer, and go on from an earlier "
        "checkpoint with a lower learning rate or an entropy bonus (algorithm.entropy_coefficient)."
    )
    return _alarm(curves, "one answer to everything", metric, seen, meaning, is_collapse=True)


def lost_data(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if the score of a data set falls in evaluations while the reward rises."""
    rewards = _values(curves, REWARD)
    if len(rewards) < MIN_STEPS or fmean(rewards[-WINDOW:]) <= fmean(rewards[:WINDOW]):
        return None
    falls: dict[str, tuple[float, float]] = {}
    for metric in curves:
        scores = _values(curves, metric) if metric.startswith(EVALUATION) else []
        if len(scores) > 1 and max(scores) - scores[-1] > LOST_POINTS:
            falls[metric] = max(scores), scores[-1]
    if not falls:
        return None
    metric, (best, last) = max(falls.items(), key=lambda fall: fall[1][0] - fall[1][1])
    seen = f"{last:.1f} in the last evaluation of {metric.removeprefix(EVALUATION)}, {best:.1f} at its best"
    meaning = "What is rewarded on average is learned at the expense of this data set: look at its share of the prompts."
    return _alarm(curves, "a data set is lost", metric, seen, meaning)


def entropy(curves: dict[str, Curve]) -> Alarm | None:
    """The entropy is below a tenth of its value at the start, and the reward has not reached its end."""
    values = _values(curves, ENTROPY)
    is_gone = len(values) >= 2 * WINDOW and fmean(values[-WINDOW:]) < 0.1 * fmean(values[:WINDOW])
    if not is_gone or _is_solved(curves):
        return None
    seen = f"{fmean(values[-WINDOW:]):.3g} nats a token, {fmean(values[:WINDOW]):.3g} at the start"
    meaning = (
        "Rollouts of a group have become alike, so there is little left to learn from: raise the clip range or the temperature."
    )
    return _alarm(curves, "the entropy is gone", ENTROPY, seen, meaning)


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


def rejected(curves: dict[str, Curve]) -> Alarm | None:
    """A model accepts far fewer of the tokens that are drafted for it than it did at the start."""
    for metric in curves:
        values = _values(curves, metric) if metric.endswith(ACCEPTANCE) else []
        if len(values) < MIN_STEPS or fmean(values[-SHORT:]) > ACCEPTED * fmean(values[:SHORT]):
            continue
        seen = f"{fmean(values[-SHORT:]):.0%} of the tokens in the last {SHORT} steps, {fmean(values[:SHORT]):.0%} in the first"
        meaning = (
            "Replies stay right, but are not faster any more: a frozen draft no longer guesses what the policy has become. Use "
            "serving.models.*.speculative.method=ngram or early_exit, whose draft every sync changes, or none."
        )
        return _alarm(curves, "drafts are rejected", metric, seen, meaning)
    return None


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
    """An alarm if all rewards are equal in more than half of the last groups."""
    meaning = "These groups teach nothing: the prompts are too easy or too hard for this policy, or the reward is too coarse."
    return _large_share(curves, "groups without signal", "train/groups_without_signal_share", 1 / 2, "groups", meaning)


def truncated(curves: dict[str, Curve]) -> Alarm | None:
    """An alarm if more than a third of the last rollouts ran into a limit."""
    meaning = "The limits of tokens, turns or time decide the reward: look at what these rollouts do at their ends."
    return _large_share(curves, "rollouts run into limits", "rollout/truncated_share", 1 / 3, "rollouts", meaning)


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


def untaught(curves: dict[str, Curve]) -> Alarm | None:
    """A teacher has not taught a single token."""
    for metric in curves:
        values = _values(curves, metric) if metric.startswith(TAUGHT) else []
        if len(values) < SHORT or any(values):
            continue
        meaning = (
            "No sequence is of the data sets and seats that it teaches: compare algorithm.distillation.teachers.*.datasets and "
            "seats with those of the rollouts."
        )
        return _alarm(curves, "a teacher teaches nothing", metric, f"no token in {len(values)} steps", meaning)
    return None


RULES: tuple[Callable[[dict[str, Curve]], Alarm | None], ...] = (
    *(falling, same_answer, lost_data, gradient, clipped, flat, entropy, difference, rejected, failures, signal, truncated),
    *(untaught, skipped, empty),
)


SAID = {"steps train no token", "updates were skipped"}
"""Alarms that the run has a warning of its own for."""


class Watch:
    """The alarms of a run while it goes on: each is new once, until it no longer holds."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._present: set[str] = set()

    def load(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Takes the steps before a resumed one, whose alarms were new in their time."""
        self._curves, self._present = {}, set()
        for row in rows:
            self.step(int(row["step"]), {name: value for name, value in row.items() if name not in ("step", "time")})

    def step(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """The alarms that the metrics of a finished step, or of an evaluation, have raised."""
        for name, value in metrics.items():
            steps, values = self._curves.setdefault(name, ([], []))
            steps.append(step)
            values.append(float(value))
        found = alarms(self._curves)
        new = [alarm for alarm in found if alarm.name not in self._present | SAID]
        self._present = {alarm.name for alarm in found}
        return new


def _large_share(curves: dict[str, Curve], name: str, metric: str, limit: float, what: str, meaning: str) -> Alarm | None:
    """An alarm if the share of the last steps is above a limit."""
    values = _values(curves, metric)[-WINDOW:]
    if len(values) < SHORT or fmean(values) <= limit:
        return None
    return _alarm(curves, name, metric, f"{fmean(values):.0%} of the {what} in the last {len(values)} steps", meaning)


def _is_solved(curves: dict[str, Curve]) -> bool:
    """True if nearly all of the last rollouts are right, after which answers and gradients mean little."""
    rewards = _values(curves, REWARD)[-SHORT:]
    return bool(rewards) and fmean(rewards) > 0.95


def _is_zero_sum(curves: dict[str, Curve]) -> bool:
    """True if what a seat wins the others lose, so that the mean reward cannot rise."""
    seats = [_values(curves, metric) for metric in curves if metric.startswith(SEAT)]
    are_rewarded = any(reward for rewards in seats for reward in rewards)
    return are_rewarded and len(seats) > 1 and all(abs(math.fsum(rewards)) < 1e-6 for rewards in zip(*seats))


def _values(curves: dict[str, Curve], metric: str) -> list[float]:
    return [value for value in curves.get(metric, ([], []))[1] if value is not None and math.isfinite(value)]


def _alarm(curves: dict[str, Curve], name: str, metric: str, seen: str, meaning: str, *, is_collapse: bool = False) -> Alarm:
    step = curves[metric][0][-1]
    return Alarm(name=name, step=step, metric=metric, seen=seen, meaning=meaning, is_collapse=is_collapse)
