"""Data come back equal, also those that orjson refuses."""

import datetime
import json
import math

import numpy
import pytest

from vime.serialization import from_json, to_json
from vime.types import Group, Prompt, Rollout, Sample, Span, Status, StopReason


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


def test_a_group_comes_back_equal_and_its_state_copies_no_tokens():
    sample = Sample(tokens=[5, 6, 7], response_length=2, loss_mask=[0, 1], rollout_log_probs=[0.0, -0.1], weight_versions=[3, 4])
    span = Span(name="actor", kind="generation", start=1.5, seconds=0.25, details={"tokens": 2})
    rollout = Rollout(rollout_id=1, group_index=2, samples=[sample], stop_reason=StopReason.ANSWERED, spans=[span])
    group = Group(
        prompt=Prompt(index=0, row=7, messages=[{"role": "user", "content": "?"}], ground_truth=["a"]), rollouts=[rollout]
    )
    state = group.to_dict()
    assert state["rollouts"][0]["samples"][0]["tokens"] is sample.tokens
    assert Group.from_dict(from_json(to_json(state))) == group


def test_a_logprob_that_is_no_number_stays_one():
    sample = Sample(tokens=[5, 6], response_length=1, loss_mask=[0], rollout_log_probs=[math.nan], weight_versions=[0])
    (value,) = Sample.from_dict(from_json(to_json(sample.to_dict()))).rollout_log_probs
    assert math.isnan(value)
