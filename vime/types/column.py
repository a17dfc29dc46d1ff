"""Columns: one number per token in a few bytes each, which users' code reads like a list; and `ColumnType`, their declaration.

A numpy array would silently change the meaning of `+`, `==` and truth in that code. A column concatenates, compares, slices and
iterates as a list does, and is read-only; numpy takes it without a copy (`np.asarray(column)`). A column of training is declared
once; packing, sharding, context parallelism and the tensors of a micro-batch follow from its `ColumnType`.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Any, Generic, TypeVar, overload

import numpy as np

Number = TypeVar("Number", int, float)


class Column(Sequence[Number], Generic[Number]):
    """A read-only sequence of Python numbers over an array.

    Example: `Column([5, 9], np.int32) + [2]` is the list `[5, 9, 2]`, and `Column([5, 9], np.int32) == [5, 9]` is True.
    """

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]  # as a list

    array: np.ndarray
    """One dimension, read-only."""

    def __init__(self, values: "Sequence[Number] | np.ndarray", dtype: Any) -> None:
        """Shares the memory of an array or column of this type.

        Raises TypeError or ValueError for anything but a sequence of numbers, and for values that integers of this type cannot
        hold.
        """
        array = np.asarray(values)
        if array.dtype != dtype:
            array = _converted(array, np.dtype(dtype))
        if array.ndim != 1:
            raise ValueError(f"an array of {array.ndim} dimensions is no sequence of numbers")
        self.array = array.view()
        self.array.flags.writeable = False

    @classmethod
    def from_text(cls, text: str, dtype: Any) -> "Column[Any]":
        """Reads `to_text`."""
        return cls(np.frombuffer(base64.b64decode(text), np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False), dtype)

    @classmethod
    def read(cls, value: Any, dtype: Any) -> "Column[Any]":
        """A column from its text, or from a list in which null means NaN."""
        return cls.from_text(value, dtype) if isinstance(value, str) else cls(np.array(value, dtype=dtype), dtype)

    def to_text(self) -> str:
        """The array's bytes, little-endian, in base64, which is written and read without making Python numbers."""
        return base64.b64encode(self.array.astype(self.array.dtype.newbyteorder("<"), copy=False).tobytes()).decode("ascii")

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> Number: ...

    @overload
    def __getitem__(self, place: slice) -> "Column[Number]": ...

    def __getitem__(self, place: int | slice) -> "Number | Column[Number]":
        if isinstance(place, slice):
            return Column(self.array[place], self.array.dtype)
        return self.array[index(place)].item()

    def __iter__(self) -> Iterator[Number]:
        return iter(self.array.tolist())

    def __contains__(self, value: object) -> bool:
        return value in self.array.tolist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return np.array_equal(self.array, other.array)
        if isinstance(other, list):
            return len(self) == len(other) and self.array.tolist() == other
        return NotImplemented

    def __add__(self, other: "list[Number] | Column[Number]") -> list[Number]:
        return [*self, *other] if isinstance(other, (list, Column)) else NotImplemented

    def __radd__(self, other: list[Number]) -> list[Number]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: int) -> list[Number]:
        return self.array.tolist() * times

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return repr(self.array.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the bytes in-band: an out-of-band buffer would cost Ray more than this copy and keep its object store full."""
        return _restored, (self.array.tobytes(), self.array.dtype.str)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy or (dtype is not None and dtype != self.array.dtype):
            return np.array(self.array, dtype=dtype)
        return self.array

    def count(self, value: Any) -> int:
        """The number of occurrences of a value."""
        return self.array.tolist().count(value)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The index of the first occurrence of a value. Raises ValueError if there is none."""
        return self.array.tolist().index(value, start, len(self) if stop is None else stop)


def _restored(data: bytes, dtype: str) -> Column[Any]:
    return Column(np.frombuffer(data, dtype), np.dtype(dtype))


def _converted(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if array.dtype.kind not in "biufO":
        raise TypeError(f"values of type {array.dtype} are no numbers")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(converted, array):
        wrong = int(np.flatnonzero(converted != array)[0])
        raise ValueError(f"{array[wrong]} at {wrong} is no integer of type {dtype}")
    return converted


Integers = list[int] | Column[int]
Reals = list[float] | Column[float]


class Defined(Enum):
    """Places of a sequence at which a column has an entry.

    Example of the tokens `[1, 5, 9, 2]` with the loss mask `[1, 0]`: everywhere is 4 places, response 2, sampled 1, sequence 1.
    """

    everywhere = "everywhere"
    """Every token, including the prompt."""
    response = "response"
    """Every token after the prompt, including those of the environment."""
    sampled = "sampled"
    """Tokens that are trained: those in the loss mask, except the first of a sequence, which nothing predicts."""
    sequence = "sequence"
    """One entry for the whole sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnType:
    """A column: its name, the type and shape of an entry, its places, and its value in a sequence that has none.

    Example of a teacher's 20 likeliest tokens: `ColumnType(name="teacher_ids", dtype="int32", shape=(20,), fill=-1)`.
    """

    name: str
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    """Trailing shape of an entry: none, `(K,)` alternatives, `(layers, k)` routed experts."""
    defined: Defined = Defined.sampled
    fill: float | None = None
    """Value where a sequence has none, and of the padding of a row; None if every sequence must have it."""


TOKEN = ColumnType(name="token", dtype="int32", defined=Defined.everywhere, fill=0)
MASK = ColumnType(name="mask", dtype="bool", defined=Defined.response)
TARGET = ColumnType(name="target", dtype="int32", defined=Defined.response)
"""Tokens whose logprobs are computed; without this column they are the sequence's own."""
LOGPROB = ColumnType(name="logprob", defined=Defined.response)
"""Logprobs of the sampler, under its temperature."""
VERSION = ColumnType(name="version", dtype="int32", defined=Defined.response)
"""Weight version that sampled a token; the version in training where a sequence has none."""
ADVANTAGE = ColumnType(name="advantage", fill=0.0)
WEIGHT = ColumnType(name="weight", fill=0.0)
"""Factor of a token's loss; all averaging is in it."""
TOP_IDS = ColumnType(name="top_ids", dtype="int32", shape=(0,), defined=Defined.response, fill=-1)
"""The likeliest tokens under the sampler, likeliest first, in `rollout.num_logprobs` places; -1 in places without a token, as
where top-k or top-p has kept fewer."""
TOP_LOGPROBS = ColumnType(name="top_logprobs", shape=(0,), defined=Defined.response, fill=float("-inf"))
"""Their logprobs, under the sampler's temperature and what top-k and top-p have kept; minus infinity without a token."""
ROUTED_EXPERTS = ColumnType(name="routed_experts", dtype="uint8", shape=(0, 0), defined=Defined.everywhere)
"""The experts of each token in each layer (`vime.types.RoutedExperts`), which a sequence holds where the trainer replays them."""
STEP_REWARD = ColumnType(name="step_reward", defined=Defined.response, fill=0.0)
"""Rewards of single replies, each at the last token of its reply, for algorithms that give credit to turns."""
IDENTITY = {
    name: ColumnType(name=name, dtype="int64", defined=Defined.sequence) for name in ("rollout_id", "order", "pair", "parent")
}
"""Ids of a sequence as columns, for losses that read them."""
