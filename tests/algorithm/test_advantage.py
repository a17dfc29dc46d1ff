"""Advantages by identity, and the weights that decide every average."""

import random
import statistics
from typing import Any

import pytest

from vime.algorithm.advantage import compare, group_advantages
from vime.algorithm.batch import build_updates
from vime.algorithm.filter import dynamic_sampling
from vime.algorithm.policy_gradient import PolicyGradient
from vime.config import Aggregation, AlgorithmConfig, Baseline, Credit, MethodConfig, Normalization, RolloutConfig, RunConfig
from vime.errors import HookError
from vime.types import Group, Prompt, Rollout, Sample, StopReason

OF_A_GROUP = [baseline for baseline in Baseline if baseline is not Baseline.running]


def updates_of(config: AlgorithmConfig, groups: list[Group], credit: Credit, **options: Any) -> Any:
    run = RunConfig(algorithm=config, method=MethodConfig(credit=credit))
    return build_updates(PolicyGradient(run), groups, **options)


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
    updates, _ = updates_of(config, [group], Credit.share)
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
    first, _ = updates_of(AlgorithmConfig(), [make_group(rollouts)], Credit.split)
    second, _ = updates_of(AlgorithmConfig(), [make_group(shuffled)], Credit.split)
    assert first == second


def test_split_credit_sums_to_the_rollouts_advantage_and_share_gives_it_whole():
    group = make_group([make_rollout(0, 1.0, [2, 3, 4]), make_rollout(1, 0.0, [2])])
    config = AlgorithmConfig(normalization=Normalization.none)
    split, _ = updates_of(config, [group], Credit.split)
    share, _ = updates_of(config, [group], Credit.share)
    assert sum(s.columns["advantage"] for s in split[0] if s.columns["advantage"] > 0) == pytest.approx(0.5)
    assert [s.columns["advantage"] for s in share[0] if s.columns["advantage"] > 0] == [0.5] * 3


@pytest.mark.parametrize("aggregation", [Aggregation.token, Aggregation.sample, Aggregation.rollout, Aggregation.nested])
def test_token_weights_sum_to_one_over_an_update(aggregation: Aggregation):
    group = make_group([make_rollout(0, 1.0, [2, 3, 4]), make_rollout(1, 0.0, [7]), make_rollout(2, 0.0, [1, 1])])
    updates, _ = updates_of(AlgorithmConfig(aggregation=aggregation), [group], Credit.share)
    assert sum(s.columns["weight"] * sum(s.loss_mask) for s in updates[0]) == pytest.approx(1.0)


def test_updates_split_by_rollouts_and_lose_none():
    group = make_group([make_rollout(i, float(i % 2), [2, 2]) for i in range(7)])
    updates, _ = updates_of(AlgorithmConfig(), [group], Credit.share, num_updates=3)
    assert [len(update) for update in updates] == [6, 4, 4]


def test_removed_samples_are_not_trained_but_their_rollout_stands_in_the_baseline():
    removed = make_rollout(0, 1.0, [2])
    removed.samples[0].remove_sample = True
    config = AlgorithmConfig(normalization=Normalization.none)
    updates, _ = updates_of(config, [make_group([removed, make_rollout(1, 0.0, [2])])], Credit.share)
    assert [s.columns["advantage"] for s in updates[0]] == [-0.5]


def test_samples_without_gradient_are_left_out_unless_another_term_needs_them():
    equal, varied = [make_rollout(0, 1.0, [2]), make_rollout(1, 1.0, [2])], [make_rollout(2, 1.0, [2]), make_rollout(3, 0.0, [2])]
    groups = [make_group(equal), make_group(varied)]
    updates, metrics = updates_of(AlgorithmConfig(), groups, Credit.share)
    assert [sample.columns["weight"] for sample in updates[0]] == [1 / 8] * 2
    assert (metrics["train/num_samples_left_out"], metrics["train/groups_without_signal_share"]) == (2, 0.5)
    with_kl, _ = updates_of(AlgorithmConfig(kl_coefficient=0.1), groups, Credit.share)
    assert len(with_kl[0]) == 4


def test_an_update_never_becomes_empty():
    group = make_group([make_rollout(0, 1.0, [2]), make_rollout(1, 1.0, [2])])
    updates, _ = updates_of(AlgorithmConfig(), [group], Credit.share)
    assert len(updates[0]) == 1


def random_group(generator: random.Random, first: int, size: int) -> Group:
    """Rollouts with one to three samples, some failed, some without samples, samples masked in part, as a whole or removed."""
    stops = [StopReason.ANSWERED, StopReason.TURN_LIMIT, StopReason.MALFORMED, StopReason.SERVER_LOST, StopReason.ABORTED]
    rollouts = []
    for number in range(first, first + size):
        lengths = [generator.randint(1, 6) for _ in range(generator.randint(0, 3))]
        rollout = make_rollout(number, generator.choice([0.0, 0.3, 1.0]), lengths, stop=generator.choice(stops))
        for sample in rollout.samples:
            sample.loss_mask = [int(generator.random() < 0.7) for _ in sample.loss_mask]
            sample.remove_sample = generator.random() < 0.1
        rollouts.append(rollout)
    return make_group(rollouts)


@pytest.mark.parametrize(("baseline", "normalization"), [(b, n) for b in OF_A_GROUP for n in Normalization])
def test_advantages_equal_a_plain_loop_over_unequal_groups(baseline: Baseline, normalization: Normalization):
    config, generator = AlgorithmConfig(baseline=baseline, normalization=normalization), random.Random(3)
    groups = [random_group(generator, 20 * index, size) for index, size in enumerate([1, 2, 3, 5, 8, 13] * 3)]
    found = group_advantages(config, groups)
    expected = {}
    for group in groups:
        present = [r for r in group.rollouts if r.stop_reason not in (StopReason.SERVER_LOST, StopReason.ABORTED)]
        rewards = [r.reward for r in present]
        for rollout in present:
            others = [r.reward for r in present if r is not rollout]
            base = {"mean": statistics.mean(rewards), "leave_one_out": statistics.mean(others or rewards), "none": 0.0}
            scale = statistics.stdev(rewards) + 1e-6 if normalization is Normalization.std and len(rewards) > 1 else 1.0
            scale = statistics.fmean(rewards) or 1.0 if normalization is Normalization.mean else scale
            if baseline is Baseline.none:
                scale = 1.0
            expected[rollout.rollout_id] = (rollout.reward - base[baseline.value]) / scale
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("baseline", [Baseline.mean, Baseline.leave_one_out])
def test_equal_rewards_have_exactly_no_advantage_whatever_their_binary_fraction(baseline: Baseline):
    for reward in (0.1, 0.7, 1e9 + 0.1):
        assert set(compare(AlgorithmConfig(baseline=baseline), dict.fromkeys(range(7), reward)).values()) == {0.0}


@pytest.mark.parametrize("credit", list(Credit))
@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_the_weighted_sum_equals_the_average_it_stands_for(aggregation: Aggregation, credit: Credit):
    generator = random.Random(5)
    config = AlgorithmConfig(
        aggregation=aggregation, normalization=Normalization.none, constant_tokens=50, entropy_coefficient=0.1
    )
    groups = [random_group(generator, 20 * index, 6) for index in range(4)]
    advantages = group_advantages(config, groups)
    terms: dict[int, list[list[float]]] = {}  # advantage of every trained token, by rollout and sample
    for rollout in (r for group in groups for r in group.rollouts if r.rollout_id in advantages):
        kept = [s for s in rollout.samples if sum(s.loss_mask) and not s.remove_sample]
        advantage = advantages[rollout.rollout_id]
        assert isinstance(advantage, float), "no sample has a reward of its own"
        value = advantage / (len(kept) if credit is Credit.split else 1) if kept else 0.0
        if kept:
            terms[rollout.rollout_id] = [[value] * sum(s.loss_mask) for s in kept]
    mean = statistics.fmean
    expected = {
        Aggregation.token: mean(x for samples in terms.values() for tokens in samples for x in tokens),
        Aggregation.sample: mean(mean(tokens) for samples in terms.values() for tokens in samples),
        Aggregation.rollout: mean(mean([x for tokens in samples for x in tokens]) for samples in terms.values()),
        Aggregation.nested: mean(mean(mean(tokens) for tokens in samples) for samples in terms.values()),
        Aggregation.constant: mean(sum(x for tokens in samples for x in tokens) / 50 for samples in terms.values()),
    }[aggregation]
    updates, metrics = updates_of(config, groups, credit)
    total = sum(s.columns["weight"] * s.columns["advantage"] * sum(s.loss_mask) for s in updates[0])
    assert total == pytest.approx(expected, abs=1e-6)
    all_samples = [s for g in groups for r in g.rollouts if r.rollout_id in advantages for s in r.samples]
    assert metrics["train/num_samples_masked"] == sum(s.remove_sample or not any(s.loss_mask) for s in all_samples) > 0


def test_permuting_groups_rollouts_and_shards_changes_nothing():
    generator = random.Random(7)
    groups = [random_group(generator, 20 * index, 7) for index in range(5)]
    shuffled = [make_group(generator.sample(group.rollouts, len(group.rollouts))) for group in groups]
    generator.shuffle(shuffled)
    config = AlgorithmConfig(aggregation=Aggregation.rollout)
    whole = updates_of(config, groups, Credit.split, num_updates=3, seed=1)
    assert updates_of(config, shuffled, Credit.split, num_updates=3, seed=1) == whole
    shards = group_advantages(config, groups[:2]) | group_advantages(config, groups[2:])
    assert shards == group_advantages(config, groups)


def test_a_rollout_in_two_groups_is_a_mistake():
    twice = make_group([make_rollout(0, 1.0, [2]), make_rollout(1, 0.0, [2])])
    with pytest.raises(AssertionError, match="two groups"):
        group_advantages(AlgorithmConfig(), [twice, twice])


def test_a_batch_in_which_all_failed_has_no_update_and_says_so():
    lost = [make_rollout(i, 0.0, [2], stop=StopReason.SERVER_LOST) for i in range(4)]
    for groups in ([], [make_group(lost)], [make_group([make_rollout(0, 1.0, []), make_rollout(1, 0.0, [])])]):
        updates, metrics = updates_of(AlgorithmConfig(), groups, Credit.share)
        assert updates == [] and metrics["train/num_samples_masked"] == 0


def test_whitening_keeps_samples_without_advantage():
    group = make_group([make_rollout(0, 1.0, [2]), make_rollout(1, 1.0, [2])])
    config = AlgorithmConfig(baseline=Baseline.mean, normalization=Normalization.none, whitening=True)
    assert len(updates_of(config, [group], Credit.share)[0][0]) == 2


def test_long_rollouts_lose_reward_as_dapo_says_and_are_reported_with_what_they_earned():
    lengths = [[4], [3, 5], [10], [11, 9]]
    group = make_group([make_rollout(i, 1.0, each) for i, each in enumerate(lengths)])
    config = AlgorithmConfig(baseline=Baseline.none, normalization=Normalization.none)
    config.overlong_max_tokens, config.overlong_buffer_tokens = 12, 6
    assert group_advantages(config, [group]) == pytest.approx({0: 1.0, 1: 1 - 2 / 6, 2: 1 - 4 / 6, 3: 0.0})
    assert [rollout.reward for rollout in group.rollouts] == [1.0] * 4
    config.overlong_buffer_tokens = 0
    assert group_advantages(config, [group]) == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0}


def test_dynamic_sampling_keeps_groups_whose_counted_rewards_differ():
    lost = make_rollout(2, 1.0, [2], stop=StopReason.SERVER_LOST)
    equal = make_group([make_rollout(0, 0.0, [2]), make_rollout(1, 0.0, [2]), lost])
    varied = make_group([make_rollout(0, 0.0, [2]), make_rollout(1, 1.0, [2])])
    assert [dynamic_sampling(RolloutConfig(), group) for group in (equal, varied)] == [False, True]


@pytest.mark.parametrize("normalization", list(Normalization))
@pytest.mark.parametrize("baseline", [Baseline.mean, Baseline.leave_one_out])
def test_samples_whose_rewards_differ_have_advantages_of_their_own(baseline: Baseline, normalization: Normalization):
    config = AlgorithmConfig(baseline=baseline, normalization=normalization)
    rollouts = [make_rollout(0, 0.5, [2, 3]), make_rollout(1, 0.0, [1]), make_rollout(2, 1.0, [4, 1])]
    for sample, reward in zip(rollouts[0].samples, (0.0, 1.0)):
        sample.reward = reward
    scale = statistics.fmean([0.25, 0.25, 0.25]) * 3 / 2  # squares around the mean 0.5, each rollout of equal weight
    scale = {Normalization.std: scale**0.5 + 1e-6, Normalization.mean: 0.5, Normalization.none: 1.0}[normalization]
    stretch = 1.5 if baseline is Baseline.leave_one_out else 1.0
    found = group_advantages(config, [make_group(rollouts)])
    assert found == {
        0: pytest.approx([-0.5 / scale, 0.5 / scale]),
        1: pytest.approx([-0.5 * stretch / scale]),
        2: pytest.approx([0.5 * stretch / scale] * 2),
    }
    updates, metrics = updates_of(config, [make_group(rollouts)], Credit.share)
    by_length = {sample.response_length: sample.columns["advantage"] for sample in updates[0] if sample.response_length > 1}
    assert by_length == pytest.approx({2: -0.5 / scale, 3: 0.5 / scale, 4: 0.5 * stretch / scale})
    assert metrics["train/advantage_mean_absolute"] > 0


def test_equal_sample_rewards_change_nothing_and_different_ones_are_a_signal():
    rollouts = [make_rollout(0, 0.5, [2, 3]), make_rollout(1, 0.5, [1])]
    for rollout in rollouts:
        for sample in rollout.samples:
            sample.reward = 0.5
    assert group_advantages(AlgorithmConfig(), [make_group(rollouts)]) == {0: 0.0, 1: 0.0}
    assert not dynamic_sampling(RolloutConfig(), make_group(rollouts))
    rollouts[0].samples[0].reward, rollouts[0].samples[1].reward = 0.0, 1.0
    first, second = group_advantages(AlgorithmConfig(), [make_group(rollouts)])[0]  # pyright: ignore[reportGeneralTypeIssues]
    assert first == -second < 0 and dynamic_sampling(RolloutConfig(), make_group(rollouts))


@pytest.mark.parametrize("successes", [1, 2, 5])
def test_maxrl_is_the_mean_score_of_the_successes_minus_that_of_all(successes: int):
    scores = [0.3, -1.0, 2.0, 0.5, 4.0]
    rewards = {number: float(number < successes) for number in range(5)}
    found = compare(AlgorithmConfig(normalization=Normalization.mean), rewards)
    estimate = statistics.fmean(found[number] * score for number, score in enumerate(scores))
    assert estimate == pytest.approx(statistics.fmean(scores[:successes]) - statistics.fmean(scores))


def test_maxrl_learns_nothing_without_success_and_refuses_negative_rewards():
    config = AlgorithmConfig(normalization=Normalization.mean)
    rollouts = [make_rollout(0, 0.0, [2, 3]), make_rollout(1, 0.0, [1])]
    assert group_advantages(config, [make_group(rollouts)]) == {0: 0.0, 1: 0.0}
    rollouts[0].samples[0].reward = 1.0
    assert group_advantages(config, [make_group(rollouts)]) == {0: [0.0, 0.0], 1: [0.0]}
    for others in ([make_rollout(3, 1.0, [1])], []):
        with pytest.raises(HookError, match=r"rollout 7 has the reward -1: give rewards of at least 0, or use"):
            group_advantages(config, [make_group([*others, make_rollout(7, -1.0, [1])])])
