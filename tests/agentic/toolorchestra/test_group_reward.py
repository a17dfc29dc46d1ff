"""Rewards of whole groups through the hooks: variants, preferences, filters, and the published advantage."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.toolorchestra.advantage import clipped
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.reward import HOMOGENEOUS, ILL_FORMED, group_reward, reward
from agentic.toolorchestra.rewards import Variant
from agentic.toolorchestra.settings import PreferenceConfig, RewardConfig
from vime.config import AlgorithmConfig, RunConfig
from vime.rollout.context import Context
from vime.types import Group, Prompt, Rollout, Sample, StopReason


def rollout(
    number: int,
    *,
    correct: bool,
    dollars: float,
    alias: str = "cheap",
    answer: str = "4",
    calls: int = 1,
    stop_reason: StopReason = StopReason.ANSWERED,
) -> Rollout:
    """A finished rollout, with the fields that `generate` and `reward` have set."""
    metadata = {
        "category": "qa",
        "dollars": dollars,
        "seconds": 1.0,
        "expert_calls": [{"alias": alias}],
        "final_output": answer,
        "response": "",
        "num_calls": calls,
        "ending": "answered",
    }
    return Rollout(
        rollout_id=number,
        group_index=0,
        samples=[Sample(metadata=metadata)],
        metrics={"strict": float(correct)},
        stop_reason=stop_reason,
    )


async def rewards_of(*rollouts: Rollout, row: dict[str, Any] | None = None, **settings: Any) -> tuple[list[float], Group]:
    """Rewards of a group, set on its rollouts as the producer sets them."""
    method = ToolOrchestraConfig(**{"preference": PreferenceConfig(cost=1.0), **settings})
    context = Context(config=RunConfig(method=method), evaluation=False, session_id="s")
    prompt = Prompt(index=0, row=0, messages=[], ground_truth=["4"], metadata=row or {})
    group = Group(prompt=prompt, rollouts=list(rollouts))
    found = await group_reward(context, group)
    for member, value in zip(group.rollouts, found, strict=True):
        member.reward, member.metrics = value.score, {**member.metrics, **value.metrics}
    return [value.score for value in found], group


def masked(group: Group) -> list[bool]:
    return [sample.remove_sample for member in group.rollouts for sample in member.samples]


async def test_cheaper_is_better_among_right_ones_and_wrong_is_worst():
    found, group = await rewards_of(
        rollout(0, correct=True, dollars=0.0),
        rollout(1, correct=True, dollars=0.05),
        rollout(2, correct=False, dollars=0.0),
    )
    assert found == pytest.approx([1.0, 0.85, 0.0]) and masked(group) == [False] * 3


async def test_the_papers_variant_gives_right_ones_nothing_but_preference_when_all_are_right():
    shaping = RewardConfig(variant=Variant.paper)
    found, _ = await rewards_of(rollout(0, correct=True, dollars=0.0), rollout(1, correct=True, dollars=1.0), shaping=shaping)
    assert found == [1.0, 0.0]


@pytest.mark.parametrize("variant", list(Variant))
async def test_homogeneous_groups_are_not_trained_in_any_variant(variant: Variant):
    found, group = await rewards_of(
        *(rollout(number, correct=True, dollars=0.01) for number in range(4)), shaping=RewardConfig(variant=variant)
    )
    assert len(set(found)) == 1 and masked(group) == [True] * 4
    assert all(member.metrics[HOMOGENEOUS] == 1.0 for member in group.rollouts)


async def test_ill_formed_rollouts_stand_in_the_baseline_and_are_not_trained():
    rollouts = rollout(0, correct=True, dollars=0.0), rollout(1, correct=False, dollars=0.0, answer="", calls=0)
    found, group = await rewards_of(*rollouts)
    assert found == [1.0, 0.0] and masked(group) == [False, True]
    assert [member.metrics[ILL_FORMED] for member in group.rollouts] == [0.0, 1.0]
    rollouts = rollout(0, correct=True, dollars=0.0), rollout(1, correct=False, dollars=0.0, answer="", calls=0)
    assert masked((await rewards_of(*rollouts, shaping=RewardConfig(format_filter=False)))[1]) == [False, False]


async def test_a_rows_preference_wins_and_changes_who_is_preferred():
    def pair() -> tuple[Rollout, Rollout]:
        return rollout(0, correct=True, dollars=0.0), rollout(1, correct=True, dollars=1.0, alias="dear")

    cheap, _ = await rewards_of(*pair())
    dear, _ = await rewards_of(*pair(), row={"preference": {"accuracy": 1.0, "tools": {"dear": 1.0}}})
    assert cheap[0] > cheap[1] and dear[0] < dear[1]
    with pytest.raises(ValueError, match="0 to 1"):
        await rewards_of(*pair(), row={"preference": {"cost": -0.3}})


async def test_a_rollout_that_left_no_sequence_is_wrong():
    gone = Rollout(rollout_id=1, group_index=0, stop_reason=StopReason.TIME_LIMIT)
    found, _ = await rewards_of(rollout(0, correct=True, dollars=0.0), gone)
    assert found == [1.0, 0.0]


STOPPED = {
    "without a sequence": Rollout(rollout_id=9, group_index=0, stop_reason=StopReason.TIME_LIMIT),
    "before it had an account": Rollout(
        rollout_id=9, group_index=0, stop_reason=StopReason.TIME_LIMIT, samples=[Sample(metadata={})]
    ),
    "by a limit": rollout(9, correct=False, dollars=0.0, alias="dear", stop_reason=StopReason.TOKEN_LIMIT),
}


@pytest.mark.parametrize("stopped", STOPPED)
@pytest.mark.parametrize("variant", list(Variant))
async def test_a_rollout_that_was_stopped_is_nobodys_measure_of_cost_time_and_tools(stopped: str, variant: Variant):
    def ended() -> list[Rollout]:
        wrong = rollout(2, correct=False, dollars=2.0)
        return [rollout(0, correct=True, dollars=1.0), rollout(1, correct=True, dollars=3.0, alias="dear"), wrong]

    settings = {"shaping": RewardConfig(variant=variant), "preference": PreferenceConfig(cost=1.0, tools={"dear": 0.5})}
    without, _ = await rewards_of(*ended(), **settings)
    found, _ = await rewards_of(*ended(), copy.deepcopy(STOPPED[stopped]), **settings)
    assert found == [*without, 0.0]


async def test_a_group_that_is_scored_again_is_masked_anew():
    first = [rollout(number, correct=True, dollars=0.0) for number in range(2)]
    assert masked((await rewards_of(*first))[1]) == [True, True]
    _, group = await rewards_of(*first, rollout(2, correct=False, dollars=0.0))
    assert masked(group) == [False] * 3, "with a new rollout it has a signal"


def group_of(*rewards: float) -> Group:
    """Rollouts that are over, with these rewards."""
    rollouts = [rollout(number, correct=True, dollars=0.0) for number in range(len(rewards))]
    for member, value in zip(rollouts, rewards, strict=True):
        member.reward = value
    return Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=rollouts)


def test_slime_agentics_advantages_divide_by_the_deviation_over_n_and_are_clipped():
    config = AlgorithmConfig()
    assert clipped(config, [group_of(1.0, 0.0)]) == pytest.approx({0: 1.0, 1: -1.0}, abs=1e-5)
    assert clipped(config, [group_of(1.0, 0.0, 0.0, 0.0)])[0] == pytest.approx(3**0.5, abs=1e-4)
    assert clipped(config, [group_of(1.0, *[0.0] * 15)])[0] == 3.0, "(1 - 1/16) / 0.242 is 3.87 before the clipping"
    assert clipped(config, [group_of(0.1, 0.1, 0.1)]) == {0: 0.0, 1: 0.0, 2: 0.0}


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=8, max_size=8))
def test_no_advantage_of_eight_rollouts_reaches_the_bound_of_the_clipping(rewards: list[float]):
    assert max(map(abs, clipped(AlgorithmConfig(), [group_of(*rewards)]).values())) <= 7**0.5 + 1e-6


async def test_the_judge_decides_only_about_answers_that_differ_by_words():
    asked: list[str] = []

    async def chat(messages: list[dict[str, str]], *, max_tokens: int) -> Any:
        asked.append(messages[-1]["content"])
        return SimpleNamespace(text="VERDICT: True", finish_reason="stop")

    method = ToolOrchestraConfig(shaping=RewardConfig(judge="judge"))
    judge: Any = SimpleNamespace(chat=chat)
    context = Context(config=RunConfig(method=method), evaluation=False, session_id="s", models={"judge": judge})
    for answer, right, count in (("4", 1.0, 0), ("four", 1.0, 1), ("", 0.0, 1)):
        metadata = {"category": "qa", "final_output": answer, "question": f"2+2, said {answer}?"}
        found = await reward(context, [Sample(label=["4"], metadata=metadata)])
        assert (found.score, len(asked)) == (right, count)
