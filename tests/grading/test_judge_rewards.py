"""Rewards of a judge alone: a ranking of a group and a rubric, in both orders, remembered, and never a zero for the judge."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.grading.test_judge import Scripted, Surroundings
from vime.config import RolloutConfig
from vime.errors import ServerError
from vime.grading import judge as module
from vime.grading.judge import ranking, read_criteria, read_ranking, rubric
from vime.types import Group, Prompt, Rollout, Sample, StopReason
from vime.workers.group_hooks import score_group

RUBRIC = [{"criterion": "names a city", "weight": 3}, {"criterion": "is short"}, {"criterion": "is rude", "weight": -2}]


class Reader(Scripted):
    """A judge that reads its prompt: longer answers are better, and the first place is preferred if `bias` is set."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.bias = bias

    async def chat(self, messages: list[dict[str, Any]], *, max_tokens: int) -> Any:
        prompt = messages[0]["content"]
        answers = re.findall(r"===== answer (\d+)\n(.*)", prompt)
        best = sorted(answers, key=lambda pair: int(pair[0]) if self.bias else -len(pair[1]))
        self.replies.append("I think.\nRANKING: " + " > ".join(number for number, _ in best))
        return await super().chat(messages, max_tokens=max_tokens)


def surroundings(model: Any = None, *replies: Any) -> Any:
    found: Any = Surroundings(*replies)
    found.models = {"judge": model or found.model}
    found.config, found.row = SimpleNamespace(deterministic=False), {"question": "Where?", "rubric": RUBRIC}
    return found


def group_of(*texts: str) -> Group:
    rollouts = [
        Rollout(rollout_id=number, group_index=0, samples=[Sample(response=text)], stop_reason=StopReason.ANSWERED)
        for number, text in enumerate(texts)
    ]
    return Group(
        prompt=Prompt(index=0, row=0, messages=[{"role": "user", "content": "Where?"}], ground_truth=[]), rollouts=rollouts
    )


@pytest.fixture(autouse=True)
def forget():
    module._opinions.clear()


def scores(rewards: Any) -> list[float]:
    return [reward.score for reward in rewards]


async def test_a_group_is_ranked_and_equal_replies_are_one():
    around = surroundings(Reader())
    assert scores(await ranking(around, group_of("aa", "a", "aaaa", "aa"))) == [0.5, 0.0, 1.0, 0.5]
    assert around.trace.counts["judge_calls"] == 2
    assert scores(await ranking(around, group_of("aa", "a", "aaaa"))) == [0.5, 0.0, 1.0]
    assert around.trace.counts == {"judge_calls": 2, "judge_cache_hits": 2}
    assert scores(await ranking(surroundings(), group_of("a", "a"))) == [0.5, 0.5], "there is nothing to ask"


async def test_replies_are_judged_by_their_ends_behind_the_thinking():
    """Their beginnings may be equal, and their thinking long."""
    begin, reader = "<think>" + "I try. " * 3000 + "</think>" + "So far. " * 2000, Reader(bias=True)
    assert scores(await ranking(surroundings(reader), group_of(begin + "It is 4.", begin + "It is 5.", "It is 4."))) == [0.5] * 3
    met = "\n".join(f"CRITERION {number}: YES" for number in (1, 2, 3))
    judged = surroundings(None, met, met)
    await rubric(judged, [Sample(response=begin + "It is 4.")])
    for prompt, ends in ((reader.prompts[0], ["It is 4.", "It is 5."]), (judged.model.prompts[0], ["It is 4."])):
        assert all(end in prompt for end in ends) and "I try" not in prompt and "So far" in prompt and len(prompt) < 26_000


async def test_a_judge_that_prefers_a_place_prefers_nobody():
    assert scores(await ranking(surroundings(Reader(bias=True)), group_of("aa", "a", "aaaa"))) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("replies", [["RANKING: 1 > 1"] * 8, [ServerError("gone")] * 8])
async def test_a_judge_that_cannot_be_read_or_reached_takes_the_group_out_and_scores_nobody(replies: list[Any]):
    group = group_of("a", "bb")
    await score_group(ranking, group, context=surroundings(None, *replies), config=RolloutConfig(max_reward_retries=1))
    assert {rollout.stop_reason for rollout in group.rollouts} == {StopReason.REWARD_RAISED}
    assert not any(rollout.counting.in_baseline for rollout in group.rollouts)


async def test_criteria_count_by_their_weights_in_the_mean_of_both_orders():
    forwards = "CRITERION 1: YES\nCRITERION 2: NO\nCRITERION 3: NO"
    around = surroundings(None, forwards, "CRITERION 1: NO\nCRITERION 2: YES\nCRITERION 3: YES")
    found = await rubric(around, [Sample(response="Paris")])
    assert found.score == pytest.approx((3 * 1.0 + 1 * 0.5) / 4) and found.metrics == {"criteria_met": pytest.approx(0.5)}
    first, second = around.model.prompts
    assert first.index("names a city") < first.index("is rude") and second.index("is rude") < second.index("names a city")
    rude = surroundings(
        None, "CRITERION 1: NO\nCRITERION 2: NO\nCRITERION 3: YES", "CRITERION 1: YES\nCRITERION 2: NO\nCRITERION 3: NO"
    )
    assert (await rubric(rude, [Sample(response="Go away")])).score == 0.0


async def test_a_rubric_that_cannot_be_read_or_is_missing_raises():
    with pytest.raises(ServerError, match="no readable reply"):
        await rubric(surroundings(None, *["CRITERION 1: YES"] * 4), [Sample(response="x")])
    around = surroundings()
    around.row = {"question": "Where?"}
    with pytest.raises(ValueError, match="has no rubric"):
        await rubric(around, [Sample(response="x")])


def test_replies_are_read_strictly():
    assert read_ranking("RANKING: 2 > 3 > 1", 3) == [0.0, 1.0, 0.5] and read_ranking("**RANKING: 2>1**", 2) == [0.0, 1.0]
    assert not any(read_ranking(reply, 3) for reply in ("RANKING: 2 > 1", "2 > 3 > 1", "RANKING: 2 > 3 > 1\nbut then"))
    assert read_criteria("Criterion 1: yes\n- CRITERION 2: NO.", 2) == [1.0, 0.0]
    assert read_criteria("CRITERION 1: YES\nCRITERION 1: NO\nCRITERION 2: NO", 2) is None
