"""`TrainSample`: one sequence as the trainer takes it, and `ColumnType`: what a column of its numbers is.

A column has one entry for each place of a sequence. It is declared once, as a `ColumnType`; packing, sharding, context
parallelism and the tensors of a micro-batch follow from the declaration. Values are given by sequence: one entry for each place
(a list, a `Column` or an array), or one number for all places, which then costs a few bytes a sequence instead of a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from vime.errors import SampleError
from vime.types.column import Integers


class Defined(Enum):
    """Places of a sequence at which a column has an entry.

    Example of the tokens `[1, 5, 9, 2]` with the loss mask `[1, 0]`: everywhere is 4 places, response 2, sampled 1, sequence 1.
    """

    everywhere = "everywhere"
    """Every token, the prompt's too."""
    response = "response"
    """Every token after the prompt, the environment's too."""
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

    def count(self, sample: "TrainSample") -> int:
        """Entries of this column in a sequence."""
        if self.defined is Defined.sequence:
            return 1
        if self.defined is Defined.sampled:
            return sample.num_trained_tokens
        return len(sample.tokens) if self.defined is Defined.everywhere else sample.response_length


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
IDENTITY = {
    name: ColumnType(name=name, dtype="int64", defined=Defined.sequence) for name in ("rollout_id", "order", "pair", "parent")
}
"""Ids of a sequence as columns, for losses that read them."""


@dataclass(kw_only=True, slots=True)
class TrainSample:
    """One sequence as the trainer takes it: tokens, the loss mask of those after the prompt, and columns by name.

    The loss of an update is the sum over its sequences and trained tokens of `weight * loss`, so packing, sharding and the order
    of sequences cannot change it.
    Example of two prompt and two response tokens: `TrainSample(tokens=[1, 5, 9, 2], loss_mask=[1, 1], columns={"logprob": [-0.1,
    -0.7], "advantage": 0.5, "weight": 0.25})`.
    """

    tokens: Integers
    loss_mask: Integers
    columns: Mapping[str, Any] = field(default_factory=dict)
    """By name; entries, or one number for all places."""
    rollout_id: int = -1
    order: int = 0
    """Place among the sequences of its rollout."""
    seat: str = ""
    """Role of the agent that sampled it, where a rollout has several."""
    pair: int = -1
    """Id that a chosen sequence and the rejected one share."""
    parent: int = -1
    """Order of the sequence of its rollout that it branches off from."""

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.loss_mask)

    @property
    def trained(self) -> np.ndarray:
        """True for the response tokens that are trained; see `Defined.sampled`."""
        mask = np.asarray(self.loss_mask, dtype=bool)
        if len(mask) == len(self.tokens) and mask[:1].any():
            mask = mask.copy()
            mask[0] = False
        return mask

    @property
    def num_trained_tokens(self) -> int:
        """Number of trained tokens."""
        return int(np.count_nonzero(self.trained))

    def with_columns(self, **columns: Any) -> "TrainSample":
        """This sequence with more columns, or with other values of them."""
        return replace(self, columns={**self.columns, **columns})

    def values(self, kind: ColumnType) -> Any:
        """The values of a column: a number for all places, or an array with an entry for each.

        Raises `SampleError` if there are none and the column has no fill, or if they are not as many as the places.
        """
        if kind is TOKEN:
            return np.asarray(self.tokens, dtype=kind.dtype)
        if kind is MASK:
            return np.asarray(self.loss_mask, dtype=kind.dtype)
        given = getattr(self, kind.name) if kind.name in IDENTITY else self.columns.get(kind.name, kind.fill)
        if isinstance(given, (int, float, np.number)) and not kind.shape:
            return given
        if given is None:
            raise SampleError(f"no column {kind.name!r}")
        array = np.asarray(given, dtype=kind.dtype)
        expected = (kind.count(self), *kind.shape)
        if array.shape in ((), kind.shape) and array.shape != expected:
            return np.broadcast_to(array, expected)
        if array.shape != expected:
            shapes = " × ".join(map(str, array.shape)), " × ".join(map(str, expected))
            raise SampleError(f"column {kind.name!r} has {shapes[0]} entries for {shapes[1]} {kind.defined.value} places")
        return array
