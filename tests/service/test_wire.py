"""Protobuf of the Tinker API: arrays arrive as they were sent, and bytes that are none are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.errors import BadRequestError
from vime.service import wire
from vime.types import Turn


def request_with(**tensors: Any) -> Any:
    request = wire._CLASSES["Request"](model_id="a:train:0", seq_id=1, loss_fn="ppo")
    datum = request.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 5], np.int32).tobytes()
    datum.model_input.add().encoded_text.tokens = np.array([9], np.int32).tobytes()
    for key, tensor in tensors.items():
        datum.loss_fn_inputs.add(key=key).value.CopyFrom(tensor)
    return wire.read_request(request.SerializeToString())


def dense(array: Any, dtype: int, shape: Any = None) -> Any:
    array = np.asarray(array)
    return wire._CLASSES["Tensor"](dense=array.tobytes(), dtype=dtype, shape=array.shape if shape is None else shape)


def test_data_arrive_as_they_were_sent():
    request = request_with(
        target_tokens=dense(np.array([5, 9, 2], np.int64), wire.INT64),
        weights=dense(np.array([0x3F80, 0x0000, 0xBF80], np.uint16), wire.BFLOAT16),
    )
    (datum,) = wire.data_of(request)
    assert np.asarray(datum.tokens).tolist() == [1, 5, 9]
    assert datum.inputs["target_tokens"].tolist() == [5, 9, 2]
    assert datum.inputs["weights"].tolist() == [1.0, 0.0, -1.0]


def test_compressed_rows_become_a_table():
    sparse = wire._CLASSES["Tensor"](dtype=wire.FLOAT32, shape=[3, 4])
    sparse.sparse_csr.values = np.array([0.5, 1.5, 2.5], np.float32).tobytes()
    sparse.sparse_csr.crow_indices = np.array([0, 2, 2, 3], np.int64).tobytes()
    sparse.sparse_csr.col_indices = np.array([0, 3, 1], np.int64).tobytes()
    (datum,) = wire.data_of(request_with(weights=sparse))
    assert datum.inputs["weights"].tolist() == [[0.5, 0, 0, 1.5], [0, 0, 0, 0], [0, 2.5, 0, 0]]
    for name, wrong in (("crow_indices", [0, 2, 1, 3]), ("col_indices", [0, 4, 1]), ("crow_indices", [0, 3])):
        broken = wire._CLASSES["Tensor"]()
        broken.CopyFrom(sparse)
        setattr(broken.sparse_csr, name, np.array(wrong, np.int64).tobytes())
        with pytest.raises(BadRequestError, match="no table of compressed rows"):
            wire.data_of(request_with(weights=broken))
    sparse.shape[1] = 2**62
    with pytest.raises(BadRequestError, match="more than"):
        wire.data_of(request_with(weights=sparse))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (dense(np.zeros(3, np.float32), wire.FLOAT32, [2]), r"3 values for the shape \(2,\)"),
        (dense(np.zeros(3, np.float32), wire.FLOAT32, [-3]), r"has the shape \(-3,\)"),
        (dense(np.zeros(3, np.float32), wire.FLOAT32, [2**40, 2**40]), "3 values"),
        (dense(np.zeros(3, np.float32), 9), "unknown type 9"),
        (dense(np.zeros(3, np.uint8), wire.FLOAT32), "no whole numbers of 4"),
    ],
)
def test_bytes_that_do_not_fit_their_shape_are_refused(tensor: Any, reason: str):
    with pytest.raises(BadRequestError, match=rf"datum 0: loss_fn_inputs.weights .*{reason}"):
        wire.data_of(request_with(weights=tensor))


def test_pictures_and_texts_are_refused():
    request = request_with()
    request.data[0].model_input.add().image = b"png"
    with pytest.raises(BadRequestError, match="has images"):
        wire.data_of(request)
    request.settings.add(key="beta").value.text = "much"
    with pytest.raises(BadRequestError, match="are numbers"):
        wire.loss_numbers(request)


def test_numbers_of_a_loss_come_in_two_forms():
    request = request_with()
    request.numbers.add(key="clip_low_threshold", value=0.8)
    request.settings.add(key="clip_high_threshold").value.number = 1.25
    assert wire.loss_numbers(request) == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.25}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_are_refused(body: bytes):
    try:
        wire.data_of(wire.read_request(body))
    except BadRequestError:
        pass


def test_answers_have_the_arrays_of_each_datum():
    arrays = [np.array([[-0.5, -1.0]]), np.array([[-2.0, -3.0], [-4.0, -5.0]])]
    output = wire._CLASSES["Output"].FromString(wire.training_answer(arrays, {"loss:sum": 3.0}))
    (record,) = output.loss_fn_outputs
    value = record.fields[0].value
    assert (record.num_datums, record.fields[0].key, list(value.trailing_shape)) == (2, "logprobs", [2])
    assert np.frombuffer(value.data, np.float32).tolist() == [-0.5, -1, -2, -3, -4, -5]
    assert np.frombuffer(value.offsets, np.int64).tolist() == [0, 8, 24]
    turn = Turn(output_ids=[7, 8], logprobs=[-0.25, -1.0], finish_reason="stop", top_ids=[7, 1, 8, 2], top_logprobs=[-0.25] * 4)
    response = wire._CLASSES["SampleResponse"].FromString(wire.sample_answer([turn], num_top=2))
    (sequence,) = response.sequences
    assert (sequence.stop_reason, np.frombuffer(sequence.tokens, np.int32).tolist()) == (wire.STOP, [7, 8])
    assert (sequence.topk_sampled_logprobs.k, sequence.topk_sampled_logprobs.length) == (2, 2)
    assert np.frombuffer(sequence.topk_sampled_logprobs.token_ids, np.int32).tolist() == [7, 1, 8, 2]


def test_a_text_that_is_no_utf8_is_refused():
    for change in (
        lambda message: setattr(message, "model_id", "here"),
        lambda message: setattr(message, "loss_fn", "here"),
        lambda message: message.data.add().loss_fn_inputs.add(key="here"),
        lambda message: message.numbers.add(key="here"),
        lambda message: setattr(message.settings.add().value, "text", "here"),
    ):
        message = wire._CLASSES["Request"](seq_id=1)
        change(message)
        with pytest.raises(BadRequestError, match="UTF-8"):
            wire.read_request(message.SerializeToString().replace(b"here", b"h\xfbre"))
