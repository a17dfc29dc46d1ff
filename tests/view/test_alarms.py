"""An alarm is raised by what it is about, and a healthy run raises none."""

import math
from typing import Any

import pytest

from vime.report.metrics_file import Curve
from vime.view.alarms import RULES, alarms

STEPS = list(range(1, 61))


def healthy() -> dict[str, Curve]:
    """A run that learns."""
    values: dict[str, Any] = {
        "reward/mean": [step / 80 + 0.02 * (step % 3) for step in STEPS],
        "train/entropy": [0.8 - step / 200 for step in STEPS],
        "train/logprob_difference_mean": [1e-6 * (1 + step % 2) for step in STEPS],
        "rollout/num_failed": [float(step % 5 == 0) for step in STEPS],
        "rollout/num_rollouts": [64.0] * 60,
        "train/groups_without_signal_share": [0.3] * 60,
        "rollout/truncated_share": [0.1] * 60,
        "train/num_skipped_updates": [0.0] * 60,
        "train/num_tokens": [900.0] * 60,
    }
    return {name: (STEPS, found) for name, found in values.items()}


WRONG = {
    "the reward is flat": ("reward/mean", [0.3 + 0.02 * (step % 3) for step in STEPS]),
    "the reward has collapsed": ("reward/mean", [0.7] * 45 + [0.1] * 15),
    "the entropy is gone": ("train/entropy", [0.8] * 45 + [0.001] * 15),
    "the logprob difference rises": ("train/logprob_difference_mean", [1e-4] * 45 + [0.02] * 15),
    "rollouts fail": ("rollout/num_failed", [0.0] * 50 + [8.0] * 10),
    "groups without signal": ("train/groups_without_signal_share", [0.2] * 50 + [0.7] * 10),
    "rollouts run into limits": ("rollout/truncated_share", [0.0] * 50 + [0.5] * 10),
    "steps train no token": ("train/num_tokens", [900.0] * 30 + [0.0] + [900.0] * 29),
    "updates were skipped": ("train/num_skipped_updates", [0.0] * 59 + [1.0]),
}


def test_a_healthy_run_raises_no_alarm():
    assert alarms(healthy()) == [] and alarms({}) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_a_sentence(name: str):
    metric, values = WRONG[name]
    found = alarms({**healthy(), metric: (STEPS, values)})
    assert [alarm.name for alarm in found] == [name]
    assert found[0].step == 60 and found[0].metric == metric and found[0].meaning.endswith(".")


def test_every_rule_is_tried():
    assert len(RULES) == len(WRONG)


def test_values_that_are_no_numbers_do_not_count():
    curves = healthy()
    assert (
        alarms({**curves, "reward/mean": (STEPS, [math.nan if step == 30 else v for step, v in zip(*curves["reward/mean"])])})
        == []
    )
