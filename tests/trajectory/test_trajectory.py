"""The record of a rollout's calls: every token once, in memory that grows only with new tokens, and in exact samples."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.trajectory.trajectory import Call, CallPrompt, Trajectory, call_key
from vime.types import STEP_REWARD, RoutedExperts, Sample, Turn

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


class Tokenizer:
    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(f"<{token}>" for token in ids)


def turn(ids: list[int], *, key: str = "") -> Turn:
    return Turn(output_ids=ids, logprobs=[-0.5] * len(ids), weight_versions=[1] * len(ids), finish_reason="stop", key=key)


def with_experts(call: Call, ids: list[int]) -> Turn:
    """A turn with what a server reports: for each token that no call before has, a row of its id and its place."""
    tokens = [*prompt_of(call), *ids]
    start = call.parent.num_routed if call.parent is not None else 0
    rows = np.array([[[token, place]] for place, token in enumerate(tokens)], np.uint8)[start:-1]
    return replace(turn(ids), routed_experts=RoutedExperts(start, rows))


def sent(trajectory: Trajectory, prompt: list[int], **about: Any) -> Call:
    continued = trajectory.continued(prompt, model="actor")
    assert continued.ids == prompt
    return trajectory.begin(continued, model="actor", tokenizer=Tokenizer(), **about)


def prompt_of(call: Call) -> list[int]:
    return call.ids().tolist()[: call.num_prompt_tokens]


@given(st.lists(st.tuples(st.integers(0, 9), IDS, IDS, st.booleans()), min_size=1, max_size=12))
def test_prompts_are_kept_as_they_were_and_every_token_is_trained_once(plan: list[tuple[int, list[int], list[int], bool]]):
    trajectory = Trajectory()
    calls: list[tuple[Call, list[int], list[int]]] = []
    for number, new, reply, ends in plan:
        _, prompt, said = calls[number % len(calls)] if calls else (None, [], [])
        call = sent(trajectory, prompt := [*prompt, *said, *new])
        if ends:
            call.finish(with_experts(call, reply))
        else:
            call.received(with_experts(call, reply))
        call.reward = float(number)
        calls.append((call, prompt, reply))
    assert [prompt_of(call) for call, _, _ in calls] == [prompt for _, prompt, _ in calls]
    trained, rewards = 0, 0.0
    for sample in trajectory.samples(Sample()):
        sample.validate(routed_experts=True)
        experts = np.asarray(sample.columns["routed_experts"])
        known = experts[:, 0, 0] != 255
        expected = np.stack([np.asarray(sample.tokens), np.arange(len(sample.tokens))], 1)
        assert (experts[known, 0] == expected[known]).all() and known[:-1].all()
        trained += sum(sample.loss_mask)
        rewards += float(np.sum(sample.values(STEP_REWARD)))
    assert trained == sum(len(reply) for _, _, reply in calls)
    assert rewards == sum(number for number, *_ in plan)


def test_the_reward_of_a_reply_is_at_its_last_token():
    trajectory = Trajectory()
    first = sent(trajectory, [1])
    first.finish(turn([2, 3]))
    second = sent(trajectory, [1, 2, 3, 7])
    second.finish(turn([4]))
    first.reward, second.reward = 0.5, -1.0
    (sample,) = trajectory.samples(Sample())
    assert sample.columns["step_reward"].tolist() == [0.0, 0.5, 0.0, -1.0]
    assert Sample.from_dict(sample.to_dict()).columns["step_reward"] == [0.0, 0.5, 0.0, -1.0]


def test_a_long_conversation_takes_memory_for_its_tokens_once():
    trajectory, prompt = Trajectory(), [1] * 1000
    for _ in range(50):
        call = sent(trajectory, prompt)
        call.finish(turn([2, 3]))
        prompt = [*prompt, 2, 3, 4, 4]
    assert prompt_of(call) == prompt[:-4]
    held = [np.asarray(call.environment) for call in trajectory.calls]
    assert sum(map(len, held)) == 1000 + 49 * 2 and all(array.base is None or array.base.size == array.size for array in held)


@pytest.mark.parametrize("seed", range(20))
def test_every_sampled_token_is_trained_with_its_logprob_and_version_and_no_other(seed: int):
    rng = random.Random(seed)
    prompt = [rng.randrange(100) for _ in range(rng.randrange(1, 5))]
    trajectory, ids, expected = Trajectory(), list(prompt), list[tuple[int, int, float, int]]()
    for number in range(rng.randrange(1, 6)):
        if number:
            between = [rng.randrange(100) for _ in range(rng.randrange(3))]
            ids += between
            expected += [(token, 0, 0.0, expected[-1][3]) for token in between]
        said = [rng.randrange(100) for _ in range(rng.randrange(1, 5))]
        logprobs, versions = [-rng.randrange(1, 64) / 64 for _ in said], sorted(rng.randrange(9) for _ in said)
        sent(trajectory, ids).finish(Turn(output_ids=said, logprobs=logprobs, weight_versions=versions, finish_reason="stop"))
        ids += said
        expected += [(token, 1, *about) for token, *about in zip(said, logprobs, versions)]
    (sample,) = trajectory.samples(Sample(rollout_id=4), {"kind": "main"})
    sample.validate()
    assert sample.tokens == ids
    found = zip(sample.tokens[len(prompt) :], sample.loss_mask, sample.rollout_log_probs, sample.weight_versions)
    assert list(found) == expected
    assert sample.response == Tokenizer().decode(ids[len(prompt) :])
    assert (sample.metadata, sample.rollout_id) == ({"kind": "main"}, 4)


def test_a_prompt_continues_a_call_only_if_it_begins_with_all_of_it_and_the_call_is_complete():
    trajectory = Trajectory()
    call = sent(trajectory, [1, 2])
    call.received(turn([3]))
    assert trajectory.continued([1, 2, 3], model="actor").parent is None
    call.finish(turn([3]))
    assert all(trajectory.continued(ids, model="actor").parent is call for ids in ([1, 2, 3], [1, 2, 3, 4]))
    assert all(trajectory.continued(ids, model="actor").parent is None for ids in ([1, 2], [1, 2, 4, 3]))
    assert trajectory.continued([1, 2, 3], model="judge").parent is None


def test_two_replies_behind_one_share_its_tokens_and_a_call_that_failed_changes_nothing():
    trajectory = Trajectory()
    sent(trajectory, [1]).finish(turn([2]))
    sent(trajectory, [1, 2, 3])  # its server was lost before a token came
    sent(trajectory, [1, 2, 3]).finish(turn([4]))
    sent(trajectory, [1, 2, 5]).finish(turn([6]))
    samples = trajectory.samples(Sample())
    assert [list(sample.tokens) for sample in samples] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [list(sample.loss_mask) for sample in samples] == [[1, 0, 1], [0, 0, 1]]


def test_what_is_not_trained_or_not_delivered_is_in_no_sample():
    trajectory = Trajectory()
    sent(trajectory, [1], trained=False).finish(turn([2]))
    lost = sent(trajectory, [5])
    lost.finish(turn([6]))
    lost.delivered = False
    assert trajectory.samples(Sample()) == []
    (chosen,) = trajectory.samples(Sample(), calls=trajectory.calls)
    assert chosen.tokens == [1, 2]


def test_another_attempt_gets_the_replies_of_the_one_before_each_once():
    trajectory = Trajectory()
    key = call_key("actor", [1], 8)
    sent(trajectory, [1]).finish(turn([2], key=key))
    sent(trajectory, [1]).received(turn([3]))
    trajectory.start_again(keeps_replies=True)
    assert trajectory.calls == [] and trajectory.samples(Sample()) == [] and trajectory.oldest_version(unknown=7) == 1
    assert [list(each.output_ids) for each in trajectory.saved()] == [[2]]
    kept = trajectory.recall(key)
    assert kept is not None and kept.output_ids == [2] and trajectory.recall(key) is None
    trajectory.start_again(keeps_replies=False)
    assert trajectory.saved() == [] and trajectory.oldest_version(unknown=7) is None


def test_a_call_of_an_earlier_attempt_that_some_task_still_makes_is_not_recorded():
    trajectory = Trajectory()
    late = trajectory.attempt
    trajectory.start_again(keeps_replies=True)
    sent(trajectory, [1], attempt=late).finish(turn([2]))
    assert trajectory.calls == []


def test_a_call_in_flight_counts_with_the_versions_that_it_may_still_get():
    trajectory = Trajectory()
    sent(trajectory, [1]).received(turn([2]))
    assert trajectory.oldest_version(unknown=0) == 0 and trajectory.oldest_version(unknown=7) == 1
    trajectory.begin(CallPrompt.behind(None, [1]), model="judge", trained=False)
    assert trajectory.oldest_version(unknown=7) == 1
