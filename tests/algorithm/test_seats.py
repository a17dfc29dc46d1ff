"""Rewards of seats: compared with the same seat elsewhere, with one another in a rollout, or with a running mean."""

import json
from dataclasses import replace
from typing import Any

import pytest

from vime.algorithm.advantage import group_advantages
from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient
from vime.config import AlgorithmConfig, Baseline, Comparison, Normalization, RunConfig
from vime.preflight.compose import compose_run
from vime.preflight.rules.rollout_settings import compared
from vime.types import Group, Prompt, Rollout, Sample, StopReason

SEATS = AlgorithmConfig(comparison=Comparison.seat, normalization=Normalization.none)


def rollout(number: int, *samples: tuple[str, float | None], reward: float = 0.0, **settings: Any) -> Rollout:
    """A rollout whose samples have these seats and rewards."""
    found = [
        Sample(tokens=[1, 2, 3], loss_mask=[1, 1], rollout_log_probs=[-0.5] * 2, weight_versions=[0] * 2, seat=seat, reward=own)
        for seat, own in samples
    ]
    settings.setdefault("stop_reason", StopReason.ANSWERED)
    return Rollout(rollout_id=number, group_index=0, samples=found, reward=reward, **settings)


def group(*rollouts: Rollout, dataset: str = "train") -> Group:
    prompt = Prompt(index=0, row=0, messages=[{"role": "user", "content": "?"}], ground_truth=["a"], dataset=dataset)
    return Group(prompt=prompt, rollouts=list(rollouts))


def game(number: int, first: float) -> Rollout:
    """A zero-sum game of two seats."""
    return rollout(number, ("first", first), ("second", -first))


def test_a_seat_that_always_wins_has_no_advantage_by_seat_and_has_one_by_rollout():
    games = [game(number, 1.0) for number in range(4)]
    assert group_advantages(SEATS, [group(*games)]) == {number: [0.0, 0.0] for number in range(4)}
    by_rollout = group_advantages(replace(SEATS, comparison=Comparison.rollout), [group(*games)])
    assert by_rollout == {number: [1.0, -1.0] for number in range(4)}


def test_each_seat_is_compared_with_itself_and_the_order_of_samples_does_not_matter():
    games = [game(number, first) for number, first in enumerate((1.0, 1.0, 1.0, -1.0))]
    games[2].samples.reverse()
    found = group_advantages(SEATS, [group(*games)])
    assert found == {0: [0.5, -0.5], 1: [0.5, -0.5], 2: [-0.5, 0.5], 3: [-1.5, 1.5]}


def test_a_seat_of_several_sequences_counts_once():
    forked = rollout(0, ("white", 1.0), ("black", -1.0), ("white", 1.0))
    found = group_advantages(SEATS, [group(forked, game(1, 0.0), rollout(2, ("white", 0.0), ("black", 0.0)))])
    assert found[0] == [0.5, -0.5, 0.5] and found[2] == [-0.5, 0.5]


def test_solvers_are_compared_within_their_rollout_and_proposers_over_the_group():
    config = replace(SEATS, nested_seats=["solver"])
    rollouts = [
        rollout(0, ("proposer", 1.0), ("solver", 1.0), ("solver", 0.0), ("solver", 0.0)),
        rollout(1, ("proposer", 0.0), ("solver", 0.0), ("solver", 0.0), ("solver", 0.0)),
        rollout(2, ("proposer", 0.5), ("solver", 1.0)),
    ]
    found = group_advantages(config, [group(*rollouts)])
    assert found[0] == pytest.approx([0.5, 2 / 3, -1 / 3, -1 / 3])
    assert found[1] == [-0.5, 0.0, 0.0, 0.0] and found[2] == [0.0, 0.0]


def test_what_failed_or_was_removed_is_no_part_of_a_seats_baseline():
    lost = rollout(2, ("first", 100.0), stop_reason=StopReason.SERVER_LOST)
    removed = game(1, 0.0)
    removed.samples.append(replace(removed.samples[0], remove_sample=True, reward=50.0))
    found = group_advantages(SEATS, [group(game(0, 1.0), removed, lost)])
    assert found[0] == [0.5, -0.5] and found[1][:2] == [-0.5, 0.5] and 2 not in found  # type: ignore[index]


def test_a_running_baseline_is_that_of_seat_and_data_set_before_each_rollout():
    config = compose_run(["algorithm=rae", "algorithm.baseline_decay=0.5", "mode=plan"]).config
    algorithm = PolicyGradient(config)
    chess = [group(game(1, -1.0), game(0, 1.0), dataset="chess")]
    assert algorithm.advantages(chess, []).values["advantage"] == {0: [1.0, -1.0], 1: [-1.5, 1.5]}
    assert algorithm.advantages([group(game(2, 1.0), dataset="go")], []).values["advantage"] == {2: [1.0, -1.0]}
    saved = json.loads(json.dumps(algorithm.state()))
    assert saved == {"running": {"chess/first": -0.25, "chess/second": 0.25, "go/first": 0.5, "go/second": -0.5}}
    resumed = PolicyGradient(config)
    resumed.load(saved)
    later = [group(game(3, 1.0), dataset="chess")]
    assert resumed.advantages(later, []).values == algorithm.advantages(later, []).values
    assert resumed.state() == algorithm.state() != saved


def test_advantages_of_seats_reach_their_sequences():
    run = RunConfig(algorithm=SEATS)
    (update,), _ = build_updates(PolicyGradient(run), [group(game(0, 1.0), game(1, -1.0))])
    assert [(each.seat, each.columns["advantage"]) for each in update] == [
        *(("first", 1.0), ("second", -1.0)),
        *(("first", -1.0), ("second", 1.0)),
    ]


def test_one_rollout_for_each_prompt_suffices_where_no_group_is_compared():
    for word, is_refused in (("algorithm=grpo", True), ("algorithm=rae", False)):
        config = compose_run([word, "rollout.num_samples_per_prompt=1", "mode=plan"]).config
        assert bool(compared(config)) is is_refused
    config.algorithm = replace(SEATS, nested_seats=["solver"], baseline=Baseline.mean)
    assert not compared(config)
