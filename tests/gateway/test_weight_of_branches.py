"""The weight of a rollout in the loss does not depend on the number of branches that its agent made.

An agent samples the same replies as one conversation, or as siblings, sub-agents and shortened histories; its sequences then have
other numbers, and the weights that the algorithm gives to their tokens have the same sum.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.scripted import Asked, user
from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient
from vime.chat.reply_reader import ReplyReader
from vime.config import Aggregation, AlgorithmConfig, Credit, MethodConfig, Normalization, RunConfig
from vime.types import Group, Prompt, Rollout, Sample, StopReason

REPLIES = [f"{'word ' * (3 * number + 1)}<|im_end|>" for number in range(6)]
LINEAR = (0, 1, 2, 3, 4, 5)
"""After how many replies each reply comes."""
BRANCHED = ((0, 1, 1, 1, 2, 2), (0, None, 1, None, 2, 3), (0, 1, 0, 3, 2, 5))
"""Siblings after shared beginnings; sub-agents, which are None; another answer to the first request."""
REWARDS = (1.0, 0.0)


async def played(asked: Asked, shape: tuple[int | None, ...]) -> list[Sample]:
    """The samples of an agent whose replies come after one another in this way."""
    histories: list[list[Any]] = [[user("1?")]]
    for number, place in enumerate(shape):
        messages = histories[place] if place is not None else [user(f"Part {number}.")]
        answer = (await asked.ask(*messages)).choices[0].message.content
        histories.append([*messages, {"role": "assistant", "content": answer}, user("And?")])
    return asked.session.samples(Sample())


def weights_of(rollouts: list[list[Sample]], aggregation: Aggregation, credit: Credit) -> list[float]:
    """The sum of weight times advantage over the trained tokens of each of two rollouts; the first rollout is better."""
    members = [
        Rollout(rollout_id=number, group_index=0, samples=samples, reward=reward, stop_reason=StopReason.ANSWERED)
        for number, (samples, reward) in enumerate(zip(rollouts, REWARDS, strict=True))
    ]
    prompt = Prompt(index=0, row=0, messages=[user("?")], ground_truth=["a"])
    config = AlgorithmConfig(normalization=Normalization.none, aggregation=aggregation, constant_tokens=1000)
    run = RunConfig(algorithm=config, method=MethodConfig(credit=credit))
    (update,), _ = build_updates(PolicyGradient(run), [Group(prompt=prompt, rollouts=members)])
    columns = [(sample.columns["advantage"], sample.columns["weight"], sum(sample.loss_mask)) for sample in update]
    parts = [(advantage > 0, weight * advantage * trained) for advantage, weight, trained in columns]
    return [sum(part for is_good, part in parts if is_good is wanted) for wanted in (True, False)]


@pytest.mark.parametrize("aggregation", [Aggregation.token, Aggregation.rollout, Aggregation.constant])
async def test_the_weight_of_a_rollout_does_not_depend_on_its_branches(
    opened: Callable[..., Asked], tokenizer: Any, aggregation: Aggregation
):
    found: list[list[Sample]] = []
    for shape in (LINEAR, LINEAR, *BRANCHED):
        asked = opened(*REPLIES, other_reader=ReplyReader(tokenizer))
        found.append(await played(asked, shape))
        asked.audit()
    linear, other, *branched = found
    assert len(linear) == len(other) == 1 and all(len(samples) > 1 for samples in branched)
    expected = weights_of([other, linear], aggregation, Credit.share)
    assert expected[0] > 0 and expected[0] == pytest.approx(-expected[1])
    for samples in branched:
        assert weights_of([samples, linear], aggregation, Credit.share) == pytest.approx(expected)
        assert weights_of([linear, samples], aggregation, Credit.share) == pytest.approx(expected)


async def test_split_credit_makes_up_for_an_equal_weight_of_each_sequence(opened: Callable[..., Asked], tokenizer: Any):
    found = [await played(opened(*REPLIES, other_reader=ReplyReader(tokenizer)), shape) for shape in (LINEAR, BRANCHED[0])]
    good, bad = weights_of(found, Aggregation.sample, Credit.split)
    assert good > 0 and good == pytest.approx(-bad)
    good, bad = weights_of(found, Aggregation.sample, Credit.share)
    assert good < -bad
