"""The record of a sample: its turns are its tokens, in order and each once."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vime.config import RolloutDetail
from vime.files.record import ENVIRONMENT, PROMPT, REPLY, Recorder, turns
from vime.types import COLUMNS, Sample


def sample_of(num_prompt: int, mask: list[int]) -> Sample:
    return Sample(
        tokens=list(range(num_prompt + len(mask))),
        response_length=len(mask),
        loss_mask=mask,
        rollout_log_probs=[-0.5] * len(mask),
        weight_versions=[3] * len(mask),
    )


@given(st.integers(1, 5), st.lists(st.integers(0, 1), max_size=30))
def test_turns_hold_every_token_once_and_replies_those_of_the_mask(num_prompt: int, mask: list[int]):
    found = turns(sample_of(num_prompt, mask), lambda ids: " ".join(map(str, ids)))
    assert [int(word) for turn in found for word in turn["text"].split()] == list(range(num_prompt + len(mask)))
    assert [turn["kind"] for turn in found].count(PROMPT) == 1 and found[0]["num_tokens"] == num_prompt
    by_turns = [int(turn["kind"] == REPLY) for turn in found[1:] for _ in range(turn["num_tokens"])]
    assert by_turns == mask
    kinds = [turn["kind"] for turn in found[1:]]
    assert all(kind in (REPLY, ENVIRONMENT) for kind in kinds) and all(a != b for a, b in itertools.pairwise(kinds))


def test_each_detail_keeps_what_the_one_before_keeps_and_more():
    kept = [set(Recorder(detail).row(sample_of(2, [1, 0, 1]))) for detail in RolloutDetail]
    assert kept[0] == kept[1] < kept[2] < kept[3] and kept[2] - kept[1] == {"turns"} and kept[3] - kept[2] == set(COLUMNS)


@given(st.integers(1, 5), st.lists(st.integers(0, 1), max_size=30))
def test_the_trainers_logprobs_stand_at_the_trained_tokens(num_prompt: int, mask: list[int]):
    values = -1.0 - np.arange(sum(mask), dtype=np.float32)
    kept = Recorder(RolloutDetail.tokens).row(sample_of(num_prompt, mask), logprobs=values)["trainer_log_probs"]
    assert len(kept) == len(mask) and [value for value in kept if value] == list(values)
    assert [int(value != 0) for value in kept] == mask


def test_weight_versions_that_differ_are_kept_for_each_token():
    sample = sample_of(1, [1, 1])
    assert Recorder(RolloutDetail.tokens).row(sample)["weight_versions"] == 3
    sample.weight_versions = [3, 4]
    assert list(Recorder(RolloutDetail.tokens).row(sample)["weight_versions"]) == [3, 4]
