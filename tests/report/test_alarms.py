"""An alarm is raised by what it is about, and a healthy run raises none."""

import math
import random
from typing import Any

import pytest

from vime.report.alarms import RULES, Watch, alarms
from vime.report.metrics_file import Curve

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
        "train/grad_norm": [0.3 + 0.1 * (step % 4) for step in STEPS],
        "train/clip_fraction": [0.02] * 60,
        "rollout/same_answer_share": [0.1 + step / 200 for step in STEPS],
        "train/taught_share_solver": [0.0] * 3 + [0.5] * 57,
        "evaluation/shop": [50.0 + step / 3 for step in STEPS],
    }
    return {name: (STEPS, found) for name, found in values.items()}


WRONG = {
    "the reward is flat": ("reward/mean", [0.3 + 0.02 * (step % 3) for step in STEPS]),
    "the reward falls": ("reward/mean", [0.7] * 45 + [0.1] * 15),
    "the gradient norm climbs": ("train/grad_norm", [0.1 + 0.02 * (step % 3) for step in STEPS[:50]] + [1.7] * 10),
    "tokens are clipped": ("train/clip_fraction", [0.01] * 45 + [0.4] * 15),
    "one answer to everything": ("rollout/same_answer_share", [0.2] * 50 + [0.95] * 10),
    "a data set is lost": ("evaluation/shop", [54.0 - step / 3 for step in STEPS]),
    "the entropy is gone": ("train/entropy", [0.8] * 45 + [0.001] * 15),
    "a teacher teaches nothing": ("train/taught_share_solver", [0.0] * 60),
    "drafts are rejected": ("serving/actor/draft_acceptance_rate", [0.8] * 30 + [0.4] * 30),
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


def rows(metric: str, values: list[float]) -> list[dict[str, float]]:
    """The metrics of each step of a run that is healthy but for one."""
    curves = healthy() | {metric: (STEPS, values)}
    return [{name: found[number] for name, (_, found) in curves.items()} for number in range(len(STEPS))]


def test_a_fall_is_seen_before_half_of_what_it_loses_is_gone():
    """Rewards of 128 rollouts that are lost within 20 steps, from a good policy to none."""
    generator = random.Random(0)
    chances = [min(0.95, 0.1 + 0.05 * step) for step in range(30)] + [0.95 - 0.035 * step for step in range(20)]
    values = [sum(generator.random() < chance for _ in range(128)) / 128 for chance in chances]
    watch, fired = Watch(), []
    for step, row in enumerate(rows("reward/mean", [*values, *[0.3] * 10])[: len(values)], 1):
        fired += [alarm for alarm in watch.step(step, row) if alarm.is_collapse]
    assert [alarm.name for alarm in fired] == ["the reward falls"]
    assert values[fired[0].step - 1] > 0.95 - 0.5 * (0.95 - chances[-1])


def test_noise_around_a_plateau_is_no_fall():
    generator = random.Random(1)
    for chance in (0.1, 0.5, 0.9):
        watch = Watch()
        for step in range(1, 201):
            found = watch.step(step, {"reward/mean": sum(generator.random() < chance for _ in range(64)) / 64})
            assert not [alarm for alarm in found if alarm.is_collapse]


def test_an_alarm_is_new_once_and_a_resumed_run_does_not_repeat_it():
    lines = rows(*WRONG["tokens are clipped"])
    watch, resumed = Watch(), Watch()
    new = [(step, alarm.name) for step, line in enumerate(lines, 1) for alarm in watch.step(step, line)]
    assert [name for _, name in new] == ["tokens are clipped"]
    resumed.load([{"step": step, "time": 0.0, **line} for step, line in enumerate(lines[:59], 1)])
    assert resumed.step(60, lines[59]) == []


def test_a_solved_task_has_no_entropy_and_one_answer_without_an_alarm():
    curves = healthy() | {"reward/mean": (STEPS, [0.2] * 20 + [1.0] * 40)}
    for name in ("the entropy is gone", "one answer to everything", "the gradient norm climbs"):
        metric, values = WRONG[name]
        assert alarms(curves | {metric: (STEPS, values)}) == []
    assert alarms(healthy() | {"reward/mean": (STEPS, [1.0] * 60)}) == [], "it is flat, and cannot rise"


def test_the_first_steps_say_little_about_shares():
    for name in ("groups without signal", "rollouts run into limits", "tokens are clipped"):
        metric = WRONG[name][0]
        watch = Watch()
        new = [step for step in range(1, 10) if [alarm.name for alarm in watch.step(step, {metric: 0.9})] == [name]]
        assert new == [5]


def test_the_mean_reward_of_a_game_that_one_wins_and_the_other_loses_may_be_flat():
    first = [0.3 * (step % 3) - 0.3 for step in STEPS]
    match = {"reward/mean": (STEPS, [0.0] * 60), "reward/reward_first": (STEPS, first)}
    assert alarms(healthy() | match | {"reward/reward_second": (STEPS, [-value for value in first])}) == []
    found = alarms(healthy() | match | {"reward/reward_second": (STEPS, first)})
    assert [alarm.name for alarm in found] == ["the reward is flat"]
    never = [0.0] * 60
    found = alarms(healthy() | match | {"reward/reward_first": (STEPS, never), "reward/reward_second": (STEPS, never)})
    assert [alarm.name for alarm in found] == ["the reward is flat"], "nothing was ever won"
