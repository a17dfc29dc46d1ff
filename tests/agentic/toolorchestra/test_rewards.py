"""Rewards: what must hold for every group, and each variant against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.toolorchestra.rewards import (
    Features,
    Preference,
    Scale,
    Variant,
    corrected,
    group_rewards,
    min_max,
    preference_score,
    well_formed,
)

TOOLS = ("search-1", "answer-1", "answer-2")
amounts = st.one_of(st.just(0.0), st.floats(min_value=0, max_value=1e6, allow_nan=False), st.just(5e-324), st.just(1e300))
weights = st.floats(min_value=0, max_value=1)
features = st.builds(
    Features,
    correct=st.booleans(),
    dollars=amounts,
    seconds=amounts,
    calls=st.dictionaries(st.sampled_from(TOOLS), st.integers(min_value=0, max_value=50)),
)
groups = st.lists(features, min_size=1, max_size=16)
preferences = st.builds(
    Preference, accuracy=weights, cost=weights, latency=weights, tools=st.dictionaries(st.sampled_from(TOOLS), weights)
)
scales = st.builds(
    Scale,
    dollars=st.floats(min_value=1e-6, max_value=1e3),
    seconds=st.floats(min_value=1e-3, max_value=1e4),
    share=st.floats(min_value=0, max_value=0.99),
)
FAST = settings(max_examples=150, deadline=None)


@FAST
@given(groups, preferences, scales)
def test_a_wrong_rollout_never_gets_more_than_a_right_one(group: list[Features], preference: Preference, scale: Scale):
    rewards = group_rewards(Variant.corrected, group, preference, scale)
    right = [reward for reward, own in zip(rewards, group) if own.correct]
    wrong = [reward for reward, own in zip(rewards, group) if not own.correct]
    assert all(0.0 <= reward <= 1.0 + 1e-12 for reward in rewards)
    assert max(wrong, default=0.0) < min(right, default=math.inf)


@FAST
@given(groups, preferences, scales, st.integers(min_value=0), amounts, st.sampled_from(["dollars", "seconds"]))
def test_raising_cost_or_latency_alone_raises_no_reward_in_the_group(
    group: list[Features], preference: Preference, scale: Scale, member: int, more: float, name: str
):
    member %= len(group)
    raised = list(group)
    raised[member] = replace(group[member], **{name: getattr(group[member], name) + more})
    before = group_rewards(Variant.corrected, group, preference, scale)
    after = group_rewards(Variant.corrected, raised, preference, scale)
    assert all(new <= old + 1e-12 for old, new in zip(before, after))


@FAST
@given(groups, preferences, scales, st.sampled_from(list(Variant)))
def test_no_variant_ever_gives_anything_but_a_number(
    group: list[Features], preference: Preference, scale: Scale, variant: Variant
):
    rewards = group_rewards(variant, group, preference, scale)
    assert len(rewards) == len(group) and all(map(math.isfinite, rewards))
    constant = [group[0]] * len(group)
    assert len({*group_rewards(variant, constant, preference, scale)}) == 1


@FAST
@given(groups, preferences, scales, st.sampled_from([v for v in Variant if v is not Variant.corrected]))
def test_wrong_is_zero_in_the_published_variants_too(
    group: list[Features], preference: Preference, scale: Scale, variant: Variant
):
    rewards = group_rewards(variant, group, preference, scale)
    assert all(reward == 0.0 for reward, own in zip(rewards, group) if not own.correct)


@FAST
@given(groups, preferences)
def test_the_papers_reward_stays_within_the_sum_of_its_weights(group: list[Features], preference: Preference):
    most = sum(preference.weights().values())
    assert all(0.0 <= reward <= most + 1e-9 for reward in group_rewards(Variant.paper, group, preference, Scale()))


CHEAP = Features(correct=True, dollars=0.01, seconds=10.0, calls={"answer-1": 1})
DEAR = Features(correct=True, dollars=0.05, seconds=30.0, calls={"answer-2": 2})
MIDDLE = Features(correct=True, dollars=0.02, seconds=20.0, calls={"answer-1": 2, "answer-2": 1})
WRONG = Features(correct=False, dollars=0.0, seconds=50.0)
GROUP = [CHEAP, DEAR, MIDDLE, WRONG]
WISH = Preference(accuracy=1.0, cost=0.3, latency=0.1, tools={"answer-2": 0.5})


def test_the_papers_reward_by_hand():
    # cost -0.01 -0.05 -0.02 0: 0.8 0 0.6 1; time -10 -30 -20 -50: 1 0.5 0.75 0; answer-2 0 2 1 0: 0 1 0.5 0; accuracy 1 1 1 0
    expected = [1 + 0.3 * 0.8 + 0.1 * 1, 1 + 0 + 0.1 * 0.5 + 0.5, 1 + 0.3 * 0.6 + 0.1 * 0.75 + 0.5 * 0.5, 0.0]
    assert group_rewards(Variant.paper, GROUP, WISH, Scale()) == pytest.approx(expected)


def test_where_all_are_right_the_papers_accuracy_counts_nothing_and_ours_all():
    right = [CHEAP, DEAR, MIDDLE]
    wish = Preference(accuracy=1.0, cost=0.3)
    assert group_rewards(Variant.paper, right, wish, Scale()) == pytest.approx([0.3, 0.0, 0.3 * 0.75])
    ours = group_rewards(Variant.corrected, right, wish, Scale(dollars=0.05, share=0.3))
    assert ours == pytest.approx([0.7 + 0.3 * 5 / 6, 0.7 + 0.3 / 2, 0.7 + 0.3 * 5 / 7])


def test_the_published_weights_pay_for_what_is_dear_and_slow():
    # accuracy 1 for the right ones; -0.3 x cost and -0.1 x time, both normalized so that cheap and quick is 1
    expected = [1 - 0.3 * 0.8 - 0.1 * 1, 1 - 0 - 0.1 * 0.5, 1 - 0.3 * 0.6 - 0.1 * 0.75, 0.0]
    rewards = group_rewards(Variant.slime_agentic_sign_error, GROUP, WISH, Scale())
    assert rewards == pytest.approx(expected)
    assert rewards[1] == max(rewards), "the dearest gets most: that is the published error"
    right = group_rewards(Variant.slime_agentic_sign_error, [CHEAP, DEAR], WISH, Scale())
    assert right == pytest.approx([-0.4, 0.0]), "where all are right, the cheap one gets less than a wrong one would"


def test_the_authors_code_pays_for_cost_too():
    # cost within -0.05 and -0.01: (0.01 + 0.05) / 0.04 and (0.05 + 0.05) / 0.04
    wish = Preference(accuracy=1.0, cost=0.5)
    assert group_rewards(Variant.nvlabs_sign_error, [CHEAP, DEAR], wish, Scale()) == pytest.approx([0.75, 1.25])


def test_our_reward_by_hand():
    scale = Scale(dollars=0.05, seconds=30.0, share=0.3)
    # cheap 0.3 x 5/6, quick 0.1 x 3/4, tools 0 of 0.5; of 0.9
    assert corrected(CHEAP, WISH, scale) == pytest.approx(0.7 + 0.3 * (0.25 + 0.075) / 0.9)
    assert corrected(DEAR, WISH, scale) == pytest.approx(0.7 + 0.3 * (0.15 + 0.05 + 0.5) / 0.9)
    assert corrected(CHEAP, Preference(), scale) == 1.0
    assert corrected(WRONG, WISH, scale) == 0.0


def test_a_preference_changes_which_expert_is_best():
    scale = Scale(share=0.5)
    cheap_first, second_first = Preference(cost=1.0), Preference(tools={"answer-2": 1.0})
    assert corrected(CHEAP, cheap_first, scale) > corrected(DEAR, cheap_first, scale)
    assert corrected(CHEAP, second_first, scale) < corrected(DEAR, second_first, scale)


@pytest.mark.parametrize(
    "wrong", [{"cost": -0.3}, {"latency": -0.1}, {"accuracy": 1.1}, {"tools": {"a": -1.0}}, {"cost": math.nan}]
)
def test_a_sign_error_cannot_be_written(wrong: dict):
    with pytest.raises(ValueError, match="use 0 to 1"):
        Preference(**wrong)


@pytest.mark.parametrize("wrong", [{"dollars": -1.0}, {"seconds": math.nan}, {"dollars": math.inf}, {"calls": {"a": -1}}])
def test_negative_amounts_cannot_be_written(wrong: dict):
    with pytest.raises(ValueError, match="0 or more"):
        Features(**{"correct": True, "dollars": 0.0, "seconds": 0.0} | wrong)


@pytest.mark.parametrize("wrong", [{"share": 1.0}, {"share": -0.1}, {"dollars": 0.0}, {"seconds": -1.0}])
def test_a_scale_that_could_put_wrong_above_right_cannot_be_written(wrong: dict):
    with pytest.raises(ValueError, match="use"):
        Scale(**wrong)


def test_a_constant_feature_is_zero():
    assert min_max([3.0, 3.0]) == [0.0, 0.0] and min_max([]) == [] and min_max([1.0, 3.0]) == [0.0, 1.0]


def test_the_format_filter():
    assert well_formed(num_tool_calls=1, response="", answer="4")
    assert not well_formed(num_tool_calls=0, response=" ", answer="4")
    assert not well_formed(num_tool_calls=3, response="text", answer=None)


def test_following_a_preference_is_measured_against_the_base_model():
    base = Features(correct=True, dollars=4.0, seconds=20.0, calls={"answer-1": 2})
    own = Features(correct=True, dollars=2.0, seconds=0.5, calls={"answer-1": 3, "answer-2": 1})
    wish = Preference(accuracy=1.0, cost=0.5, latency=0.1, tools={"answer-1": 0.2, "answer-2": 1.0})
    assert preference_score(own, base, wish) == pytest.approx(0.2 * 3 / 2 + 1.0 + 1.0 + 0.5 * 400 / 200 + 0.1 * 20 / 1)
