"""Messages of the Tinker API that are protobuf on the wire: training data in, logprobs and samples out.

The messages are described here by their numbers and names, which is all that the wire format has; fields that are not read are
left out. Arrays are bytes, little-endian, one number after the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from vime.errors import BadRequestError
from vime.service.datum import Datum
from vime.serving.scores import Scores
from vime.types import Turn

CONTENT_TYPE = "application/x-protobuf"
PACKAGE = "vime.tinker"
SCHEMA = """
EncodedText    1 tokens bytes
Chunk          1 encoded_text EncodedText; 2 image bytes; 3 audio bytes
SparseCsr      1 values bytes; 2 crow_indices bytes; 3 col_indices bytes
Tensor         1 dense bytes; 2 sparse_csr SparseCsr; 3 dtype int32; 4 shape int64*
Input          1 key string; 2 value Tensor
Datum          1 model_input Chunk*; 2 loss_fn_inputs Input*
Number         1 key string; 2 value double
LossValue      1 number double; 2 text string
LossSetting    1 key string; 2 value LossValue
Request        1 model_id string; 2 seq_id int32; 3 data Datum*; 4 loss_fn string; 5 numbers Number*; 6 forward_only bool; \
7 settings LossSetting*
BatchedTensor  1 data bytes; 2 offsets bytes; 3 dtype int32; 4 trailing_shape int64*
Field          1 key string; 2 value BatchedTensor
ArrayRecord    1 type_tag string; 2 fields Field*; 3 num_datums int64
Output         1 loss_fn_output_type string; 2 loss_fn_outputs ArrayRecord*; 3 metrics Number*
TopkLogprobs   1 token_ids bytes; 2 logprobs bytes; 3 k uint32; 4 length uint32
Sequence       1 stop_reason int32; 2 tokens bytes; 3 logprobs bytes; 4 topk_sampled_logprobs TopkLogprobs
SampleResponse 1 sequences Sequence*; 2 prompt_logprobs bytes; 3 topk_prompt_logprobs TopkLogprobs
"""
"""One message on each line: number, name and type of its fields; a star means several."""
FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
DTYPES = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4"), BFLOAT16: np.dtype("<u2")}
STOP, LENGTH = 0, 1
"""Reasons for the end of a sample: a stop token or text, and its limit."""
_Field = descriptor_pb2.FieldDescriptorProto


def _messages() -> dict[str, Any]:
    """The message classes by name. Their syntax is proto2, which writes what was set, and knows what was not."""
    file = descriptor_pb2.FileDescriptorProto(name="vime/tinker.proto", package=PACKAGE, syntax="proto2")
    kinds = {name.removeprefix("TYPE_").lower(): number for name, number in _Field.Type.items()}
    for line in SCHEMA.strip().splitlines():
        name, _, described = line.partition(" ")
        message = file.message_type.add(name=name)
        for number, field, kind in (part.split() for part in described.split(";")):
            label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            added = message.field.add(number=int(number), name=field, label=label)
            added.type = kinds.get(kind, _Field.TYPE_MESSAGE)
            if kind not in kinds:
                added.type_name = f".{PACKAGE}.{kind}"
            elif label == _Field.LABEL_REPEATED:
                added.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


_CLASSES = _messages()


def read_request(body: bytes) -> Any:
    """The message of a training call. Raises BadRequestError for bytes that are none."""
    message = _CLASSES["Request"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequestError(f"the body is no request of the Tinker API in protobuf ({error})") from error
    texts = [message.model_id, message.loss_fn, *(each.key for each in (*message.numbers, *message.settings))]
    texts += [each.value.text for each in message.settings]
    texts += [each.key for datum in message.data for each in datum.loss_fn_inputs]
    if not all(isinstance(text, str) for text in texts):  # protobuf gives bytes where a text is none
        raise BadRequestError("the body is no request of the Tinker API in protobuf (a text is no UTF-8)")
    return message


def num_tokens(request: Any) -> int:
    """The number of tokens of a training call."""
    size = DTYPES[INT32].itemsize
    return sum(len(chunk.encoded_text.tokens) // size for datum in request.data for chunk in datum.model_input)


def loss_numbers(request: Any) -> dict[str, float]:
    """The numbers of `loss_fn_config`, in its older and its newer form. Raises BadRequestError for a text among them."""
    found = {each.key: each.value for each in request.numbers}
    for each in request.settings:
        if not each.value.HasField("number"):
            raise BadRequestError(f"loss_fn_config.{each.key}={each.value.text!r}: the settings of a loss are numbers")
        found[each.key] = each.value.number
    return found


def data_of(request: Any) -> list[Datum]:
    """The data of a training call. Raises BadRequestError for images, audio, and bytes that do not fit their shape."""
    data = []
    for index, datum in enumerate(request.data):
        parts = []
        for chunk in datum.model_input:
            if not chunk.HasField("encoded_text"):
                kind = "images" if chunk.HasField("image") else "audio" if chunk.HasField("audio") else "an empty chunk"
                raise BadRequestError(f"datum {index}: model_input has {kind}; this service trains on tokens alone")
            parts.append(_array(chunk.encoded_text.tokens, DTYPES[INT32], f"datum {index}: model_input"))
        inputs = {each.key: _tensor(each.value, f"datum {index}: loss_fn_inputs.{each.key}") for each in datum.loss_fn_inputs}
        data.append(Datum(tokens=np.concatenate(parts) if parts else np.zeros(0, np.int32), inputs=inputs))
    if not data:
        raise BadRequestError("the call has no data")
    return data


def _tensor(message: Any, where: str) -> np.ndarray:
    dtype, shape = DTYPES.get(message.dtype), tuple(message.shape)
    if dtype is None:
        raise BadRequestError(f"{where} has the unknown type {message.dtype}")
    if any(size < 0 for size in shape):
        raise BadRequestError(f"{where} has the shape {shape}")
    if message.HasField("sparse_csr"):
        return _from_sparse(message.sparse_csr, dtype, shape, where)
    values = _values(message.dense, dtype, where)
    if not shape and len(values) == 1:
        return values.reshape(())
    if shape and values.size == _size(shape):
        return values.reshape(shape)
    raise BadRequestError(f"{where} has {values.size} values for the shape {shape}")


def _from_sparse(sparse: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    """A table from its entries; cells without one are 0. Rows may have entries in any columns, once each."""
    values = _values(sparse.values, dtype, where)
    starts, columns = (_array(part, DTYPES[INT64], where) for part in (sparse.crow_indices, sparse.col_indices))
    is_whole = len(shape) == 2 and len(starts) == shape[0] + 1 and len(values) == len(columns) == (starts[-1:].sum())
    is_rising = is_whole and starts[0] == 0 and (np.diff(starts) >= 0).all()
    if not is_rising or (len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]):
        raise BadRequestError(f"{where} is no table of compressed rows with the shape {shape}")
    if _size(shape) > MAX_CELLS:
        raise BadRequestError(f"{where} has {_size(shape)} cells, more than {MAX_CELLS}")
    table = np.zeros(shape, values.dtype)
    table[np.repeat(np.arange(shape[0]), np.diff(starts)), columns] = values
    return table


MAX_CELLS = 2**26
"""Cells of a table that came in compressed rows, which could otherwise take any memory."""


def _values(data: bytes, dtype: np.dtype[Any], where: str) -> np.ndarray:
    array = _array(data, dtype, where)
    if dtype == DTYPES[BFLOAT16]:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _array(data: bytes, dtype: np.dtype[Any], where: str) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise BadRequestError(f"{where} has {len(data)} bytes, which are no whole numbers of {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for each in shape:  # not numpy's product, which overflows
        size *= each
    return size


def training_answer(logprobs: Sequence[np.ndarray], metrics: Mapping[str, float]) -> bytes:
    """The answer to a training call: logprobs of the targets of each datum, and metrics."""
    output = _CLASSES["Output"](loss_fn_output_type="TorchLossReturn")
    record = output.loss_fn_outputs.add(num_datums=len(logprobs))
    field = record.fields.add(key="logprobs")
    field.value.dtype = FLOAT32
    arrays = [np.ascontiguousarray(each, DTYPES[FLOAT32]) for each in logprobs]
    field.value.trailing_shape.extend(arrays[0].shape[1:])
    field.value.data = b"".join(each.tobytes() for each in arrays)
    field.value.offsets = np.cumsum([0, *(each.nbytes for each in arrays)]).astype(DTYPES[INT64]).tobytes()
    for key, value in metrics.items():
        output.metrics.add(key=key, value=value)
    return output.SerializeToString()


def sample_answer(turns: Sequence[Turn], *, num_top: int = 0, prompt: Scores | None = None) -> bytes:
    """The answer to a sampling call, with the `num_top` likeliest tokens at each place of a reply where they were asked for.

    With scores of the prompt it has these too; its first token has none, so there its logprob is not a number, and its likeliest
    tokens have the id -1.
    """
    response = _CLASSES["SampleResponse"]()
    for turn in turns:
        added = response.sequences.add(stop_reason=STOP if turn.finish_reason == "stop" else LENGTH)
        added.tokens = np.asarray(turn.output_ids, DTYPES[INT32]).tobytes()
        added.logprobs = np.asarray(turn.logprobs, DTYPES[FLOAT32]).tobytes()
        if num_top:
            _fill(added.topk_sampled_logprobs, np.asarray(turn.top_ids), np.asarray(turn.top_logprobs), num_top)
    if prompt is not None:
        response.prompt_logprobs = np.concatenate([[np.nan], prompt.logprobs]).astype(DTYPES[FLOAT32]).tobytes()
        if width := prompt.ids.shape[1]:
            ids = np.concatenate([np.full((1, width), -1), prompt.ids])
            logprobs = np.concatenate([np.full((1, width), -np.inf), prompt.likeliest])
            _fill(response.topk_prompt_logprobs, ids, logprobs, width)
    return response.SerializeToString()


def _fill(message: Any, ids: np.ndarray, logprobs: np.ndarray, width: int) -> None:
    """Fills in the likeliest tokens, `width` at each place."""
    message.k, message.length = width, ids.size // width
    message.token_ids = np.ascontiguousarray(ids, DTYPES[INT32]).tobytes()
    message.logprobs = np.ascontiguousarray(logprobs, DTYPES[FLOAT32]).tobytes()
