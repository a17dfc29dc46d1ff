"""Data come back equal, including data that orjson refuses."""

import datetime
import json
import math
from typing import Any

import numpy
import pytest

from vime.files.serialization import from_json, json_pieces, to_json
from vime.types import COLUMNS, Group, Prompt, Rollout, Sample, Span, Status, StopReason
from vime.types.column import Column


@pytest.mark.parametrize(
    "data",
    [
        {"tokens": [1, 2, 3], "text": "ä\u2028\n", "nested": {"a": [None, True, -0.1]}},
        {"integer": 2**80},
        {"surrogate": "\ud800"},
        [0.1 + 0.2, 1e-300, -5.0],
    ],
)
def test_what_json_knows_comes_back_equal_on_one_line(data):
    line = to_json(data)
    assert b"\n" not in line
    assert from_json(line) == data
    assert json.loads(line) == data


def test_what_json_does_not_know_is_written_all_the_same():
    data = {3: numpy.arange(3), "date": datetime.date(2026, 1, 2), "object": StopReason, "status": Status.COMPLETED}
    assert from_json(to_json(data)) == {"3": [0, 1, 2], "date": "2026-01-02", "object": str(StopReason), "status": "completed"}


def test_torn_data_is_a_value_error():
    with pytest.raises(ValueError):
        from_json(to_json({"a": [1, 2]})[:-3])


def make_group(sample: Sample) -> Group:
    span = Span(name="actor", kind="generation", start=1.5, seconds=0.25, details={"tokens": 2})
    rollout = Rollout(rollout_id=1, group_index=2, samples=[sample], stop_reason=StopReason.ANSWERED, spans=[span])
    prompt = Prompt(index=0, row=7, messages=[{"role": "user", "content": "?"}], ground_truth=["a"])
    return Group(prompt=prompt, rollouts=[rollout])


def make_sample(**changed: Any) -> Sample:
    numbers: dict[str, Any] = {"loss_mask": [0, 1], "rollout_log_probs": [0.0, -0.5], "weight_versions": [3, 4]}
    return Sample(tokens=[5, 6, 7], response_length=2, **numbers | changed)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("as_columns", [False, True])
def test_a_group_comes_back_equal_and_its_state_copies_no_tokens(compact: bool, as_columns: bool):
    sample = make_sample()
    if as_columns:
        sample.to_columns()
    group = make_group(sample)
    state = group.to_dict()
    assert state["rollouts"][0]["samples"][0]["tokens"] is sample.tokens
    found = Group.from_dict(from_json(to_json(state, compact=compact)))
    assert found == group
    assert all(isinstance(getattr(found.rollouts[0].samples[0], name), Column) for name in COLUMNS)


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_logprob_that_is_no_number_stays_one(as_columns: bool):
    sample = make_sample(rollout_log_probs=[math.nan, -0.5])
    if as_columns:
        sample.to_columns()
    for compact in (False, True):
        value, _ = Sample.from_dict(from_json(to_json(sample.to_dict(), compact=compact))).rollout_log_probs
        assert math.isnan(value)


def test_people_read_lists_where_they_put_a_column():
    sample = make_sample()
    sample.to_columns()
    assert from_json(to_json({"ids": sample.tokens, "tail": sample.tokens[1:]})) == {"ids": [5, 6, 7], "tail": [6, 7]}


def test_a_million_tokens_are_a_few_bytes_each_on_disk_and_never_python_numbers():
    sample = make_sample()
    sample.tokens = Column(numpy.arange(1_000_000, dtype=numpy.int32), numpy.int32)
    data = to_json(sample.to_dict(), compact=True)
    assert len(data) < 5.4 * 1_000_000
    read = from_json(data)
    assert isinstance(read["tokens"], str)
    assert Sample.from_dict(read).tokens == sample.tokens


@pytest.mark.parametrize("depth", range(5))
def test_pieces_make_the_whole(depth: int):
    sample = make_sample()
    sample.to_columns()
    slots = {"0": {"group": make_group(sample).to_dict()}, "1": {"group": None}, 'ä"': {}}
    state = {"step": 3, "buffer": {"next_slot": 2, "slots": slots}, "source": {7: [1]}, "nothing": None}
    pieces = list(json_pieces(state, depth=depth))
    assert b"".join(pieces) == to_json(state, compact=True)
    assert (len(pieces) > 10) == (depth >= 2)
