"""One turn is shared by all who need it; pieces of a reply join to the turn that it is; what is kept reads back equal."""

import itertools
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tests.sampled import sample_of
from vime.chat.served_model import ServedModel
from vime.files.serialization import from_json, to_json
from vime.types import Column, Sample, Turn

REPLY = Turn(output_ids=[9, 2], logprobs=[-0.5, -0.25], weight_versions=[3, 4], finish_reason="stop", seconds=1.5)


class Client:
    """Samples the same reply for every prompt."""

    async def generate(self, token_ids: Any, **_: Any) -> Turn:
        return REPLY


class Tokenizer:
    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(map(str, ids))


async def test_hook_log_and_sampled_tokens_share_the_columns_that_the_client_made():
    client: Any = Client()
    model = ServedModel(
        client=client,
        tokenizer=Tokenizer(),
        max_model_len=64,
        temperature=1.0,
        top_p=1.0,
        session="s",
    )
    turn = await model.complete([1, 5], max_tokens=4)
    (kept,) = model.trajectory.saved()
    (call,) = model.trajectory.calls
    for name in ("output_ids", "logprobs", "weight_versions"):
        assert getattr(turn, name) is getattr(kept, name) is getattr(call.turn, name) is getattr(REPLY, name)
    assert (turn.prompt_ids, turn.text, turn.seconds) == ([1, 5], "9 2", 1.5)
    assert len(kept.prompt_ids) == 0 and kept.key == turn.key != ""


def test_a_turn_is_made_of_columns_and_cannot_be_changed():
    assert all(isinstance(column, Column) for column in (REPLY.prompt_ids, REPLY.output_ids, REPLY.logprobs))
    assert [*REPLY.output_ids, 7] == [9, 2, 7] and REPLY.output_ids[:1] == [9] and REPLY.text == ""
    field, ids = "finish_reason", REPLY.output_ids
    with pytest.raises(FrozenInstanceError):
        setattr(REPLY, field, "length")
    with pytest.raises(TypeError):
        ids[0] = 1  # pyright: ignore[reportIndexIssue]
    assert replace(REPLY, prompt_ids=[1]).output_ids is REPLY.output_ids


@pytest.mark.parametrize("cuts", [[], [1], [0, 1, 1], [2]])
def test_pieces_join_to_the_turn_that_they_were_cut_from(cuts: list[int]):
    edges = [0, *cuts, len(REPLY.output_ids)]
    pieces = [
        Turn(output_ids=REPLY.output_ids[a:b], logprobs=REPLY.logprobs[a:b], weight_versions=REPLY.weight_versions[a:b])
        for a, b in itertools.pairwise(edges)
    ]
    assert Turn.joined(pieces, finish_reason="stop", seconds=1.5) == REPLY


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_kept_of_a_turn_reads_back_equal_without_its_prompt(compact: bool):
    kept = replace(REPLY, key="5f1c")
    full = replace(kept, prompt_ids=[1, 5], message={"role": "assistant", "content": "hi"})
    assert Turn(**from_json(to_json(full.to_dict(), compact=compact))) == kept
    assert pickle.loads(pickle.dumps(full)) == full


def test_a_sample_of_a_turn_trains_its_sampled_tokens():
    sample = sample_of(Sample(rollout_id=3), replace(REPLY, prompt_ids=[1, 5], message={"content": "hi"}))
    assert (sample.tokens, sample.loss_mask, sample.weight_versions) == ([1, 5, 9, 2], [1, 1], [3, 4])
    assert (sample.rollout_log_probs, sample.response, sample.rollout_id) == ([-0.5, -0.25], "hi", 3)
