"""Advantages by identity, and the weights that decide every average."""

import random

import pytest

from vime.algorithm.advantage import group_advantages
from vime.algorithm.batch import build_updates
from vime.config import Aggregation, AlgorithmConfig, Credit, Normalization
from vime.types import Group, Prompt, Rollout, Sample, StopReason


def make_rollout(rollout_id: int, reward: float, lengths: list[int], stop: StopReason = StopReason.ANSWERED) -> Rollout:
    samples = [
        Sample(
            tokens=[1, 2, *([3] * length)],
            response_length=length,
            loss_mask=[1] * length,
            rollout_log_probs=[-0.5] * length,
            weight_versions=[0] * length,
            rollout_id=rollout_id,
        )
        for length in lengths
    ]
    return Rollout(rollout_id=rollout_id, group_index=0, samples=samples, reward=reward, stop_reason=stop)


def make_group(rollouts: list[Rollout]) -> Group:
    prompt = Prompt(index=0, row=0, messages=[{"role": "user", "content": "?"}], ground_truth=["a"])
    return Group(prompt=prompt, rollouts=rollouts)


def test_advantages_are_centred_and_divided_by_the_sample_deviation():
    group = make_group([make_rollout(i, reward, [2]) for i, reward in enumerate([1.0, 0.0, 0.0, 1.0])])
    advantages = group_advantages(AlgorithmConfig(), [group])
    deviation = (4 * 0.25 / 3) ** 0.5
    assert advantages == pytest.approx(
        {0: 0.5 / deviation, 1: -0.5 / deviation, 2: -0.5 / deviation, 3: 0.5 / deviation}, rel=1e-5
    )


def test_without_normalization_the_reward_is_only_centred():
    group = make_group([make_rollout(i, reward, [2]) for i, reward in enumerate([1.0, 0.0])])
    config = AlgorithmConfig(normalization=Normalization.none)
    assert group_advantages(config, [group]) == {0: 0.5, 1: -0.5}


def test_an_infrastructure_failure_leaves_the_baseline_and_the_batch():
    failed = make_rollout(1, 0.0, [2], stop=StopReason.SERVER_LOST)
    group = make_group([make_rollout(0, 1.0, [2]), failed, make_rollout(2, 0.0, [2])])
    config = AlgorithmConfig(normalization=Normalization.none)
    assert group_advantages(config, [group]) == {0: 0.5, 2: -0.5}
    updates, _ = build_updates(config, [group], credit=Credit.share)
    assert len(updates[0]) == 2


def test_an_agent_failure_stays_in_the_baseline_even_without_samples():
    out_of_time = make_rollout(1, 0.0, [], stop=StopReason.TIME_LIMIT)
    config = AlgorithmConfig(normalization=Normalization.none)
    assert group_advantages(config, [make_group([make_rollout(0, 1.0, [2]), out_of_time])])[0] == 0.5


def test_groups_of_one_and_groups_without_variance_have_zero_advantage():
    alone = make_group([make_rollout(0, 1.0, [2])])
    equal = make_group([make_rollout(1, 1.0, [2]), make_rollout(2, 1.0, [2])])
    assert group_advantages(AlgorithmConfig(), [alone, equal]) == {0: 0.0, 1: 0.0, 2: 0.0}


def test_order_of_rollouts_does_not_matter():
    rollouts = [make_rollout(i, float(i % 3 == 0), [1 + i % 4] * (1 + i % 3)) for i in range(12)]
    shuffled = list(rollouts)
    random.Random(0).shuffle(shuffled)
    first, _ = build_updates(AlgorithmConfig(), [make_group(rollouts)], credit=Credit.split)
    second, _ = build_updates(AlgorithmConfig(), [make_group(shuffled)], credit=Credit.split)
    assert first == second


def test_split_credit_sums_to_the_rollouts_advantage_and_share_gives_it_whole():
    group = make_group([make_rollout(0, 1.0, [2, 3, 4]), make_rollout(1, 0.0, [2])])
    config = AlgorithmConfig(normalization=Normalization.none)
    split, _ = build_updates(config, [group], credit=Credit.split)
    share, _ = build_updates(config, [group], credit=Credit.share)
    assert sum(s.advantage for s in split[0] if s.advantage > 0) == pytest.approx(0.5)
    assert [s.advantage for s in share[0] if s.advantage > 0] == [0.5] * 3


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_token_weights_sum_to_one_over_an_update(aggregation: Aggregation):
    group = make_group([make_rollout(0, 1.0, [2, 3, 4]), make_rollout(1, 0.0, [7]), make_rollout(2, 0.0, [1, 1])])
    updates, _ = build_updates(AlgorithmConfig(aggregation=aggregation), [group], credit=Credit.share)
    assert sum(s.token_weight * sum(s.loss_mask) for s in updates[0]) == pytest.approx(1.0)


def test_updates_split_by_rollouts_and_lose_none():
    group = make_group([make_rollout(i, float(i % 2), [2, 2]) for i in range(7)])
    updates, _ = build_updates(AlgorithmConfig(), [group], credit=Credit.share, num_updates=3)
    assert [len(update) for update in updates] == [6, 4, 4]


def test_removed_samples_are_not_trained_but_their_rollout_stands_in_the_baseline():
    removed = make_rollout(0, 1.0, [2])
    removed.samples[0].remove_sample = True
    config = AlgorithmConfig(normalization=Normalization.none)
    updates, _ = build_updates(config, [make_group([removed, make_rollout(1, 0.0, [2])])], credit=Credit.share)
    assert [s.advantage for s in updates[0]] == [-0.5]


def test_samples_without_gradient_are_left_out_unless_another_term_needs_them():
    equal, varied = [make_rollout(0, 1.0, [2]), make_rollout(1, 1.0, [2])], [make_rollout(2, 1.0, [2]), make_rollout(3, 0.0, [2])]
    groups = [make_group(equal), make_group(varied)]
    updates, metrics = build_updates(AlgorithmConfig(), groups, credit=Credit.share)
    assert [sample.token_weight for sample in updates[0]] == [1 / 8] * 2
    assert (metrics["train/num_samples_left_out"], metrics["train/groups_without_signal_share"]) == (2, 0.5)
    with_kl, _ = build_updates(AlgorithmConfig(kl_coefficient=0.1), groups, credit=Credit.share)
    assert len(with_kl[0]) == 4


def test_an_update_never_becomes_empty():
    group = make_group([make_rollout(0, 1.0, [2]), make_rollout(1, 1.0, [2])])
    updates, _ = build_updates(AlgorithmConfig(), [group], credit=Credit.share)
    assert len(updates[0]) == 1
