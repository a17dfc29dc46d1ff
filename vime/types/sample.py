"""`Sample`: one trainable token sequence of a rollout."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from vime.errors import SampleError
from vime.types.column import IDENTITY, ROUTED_EXPERTS, TOP_IDS, VERSION, Column, ColumnType, Defined, Integers, Reals
from vime.types.identity import member_of
from vime.types.routed_experts import table_from_dict, table_to_dict, unknown
from vime.types.stop_reason import Status, StopReason
from vime.types.turn import Message

COLUMNS = {"tokens": np.int32, "loss_mask": np.uint8, "rollout_log_probs": np.float32, "weight_versions": np.int32}
"""Fields of a sample with one number per token, and the type of these numbers once the sample has been accepted."""
FIELD_OF = {"token": "tokens", "mask": "loss_mask", "logprob": "rollout_log_probs", "version": "weight_versions"}
"""The field that holds a column of the trainer, by the column's name."""
ADDED = ("columns", "order", "seat", "pair", "parent")
"""Fields that are written only where they have been set."""


@dataclass(kw_only=True, slots=True)
class Sample:
    """One trainable token sequence (field names are slime's).

    Example of a prompt P of two tokens, a sampled answer A of three and a tool result E of two, then a sampled B of one:

        tokens            P0 P1 A0 A1 A2 E0 E1 B0
        response_length         6
        loss_mask               1  1  1  0  0  1
        rollout_log_probs       a  a  a  0  0  b
        weight_versions         4  4  4  4  4  5

    `context.samples` makes them with columns, which are read-only and otherwise behave like lists; lists are converted when the
    sample is accepted. The trainer takes samples too, with the `columns` that an algorithm adds. The loss of an update is the sum
    over its samples and trained tokens of `weight * loss`, so packing, sharding and the order of samples cannot change it.
    """

    prompt: str | list[Message] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    tokens: Integers = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    """Number of tokens after the prompt; by default the length of the loss mask."""
    loss_mask: Integers = field(default_factory=list)
    rollout_log_probs: Reals = field(default_factory=list)
    weight_versions: Integers = field(default_factory=list)
    reward: float | None = None
    status: Status = Status.PENDING
    stop_reason: StopReason | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    group_index: int = -1
    index: int = -1
    rollout_id: int = -1
    session_id: str = ""
    remove_sample: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns by name, for example {"advantage": 0.5}: one entry for each place (`ColumnType`), or one number for all."""
    order: int = 0
    """Place among the samples of its rollout."""
    seat: str = ""
    """Role of the agent that sampled it, where a rollout has several."""
    pair: int = -1
    """Id that a chosen sample and the rejected one share."""
    parent: int = -1
    """Order of the sample of its rollout that it branches off from."""

    def __post_init__(self) -> None:
        """Takes the length of the response from its loss mask, where it is not given."""
        self.response_length = self.response_length or len(self.loss_mask)

    @property
    def question(self) -> str:
        """The text of its prompt, or of the last message of its prompt; empty without any."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"] if self.prompt else ""

    @property
    def member(self) -> int:
        """The place of its rollout in the group, from 0."""
        return member_of(self.rollout_id)

    @property
    def trained(self) -> np.ndarray:
        """True for the response tokens that are trained (`Defined.sampled`), shape [response tokens]."""
        mask = np.asarray(self.loss_mask)
        mask = mask.view(bool) if mask.dtype == np.uint8 else mask.astype(bool)
        if len(mask) == len(self.tokens) and mask[:1].any():
            mask = mask.copy()
            mask[0] = False
        return mask

    @property
    def num_trained_tokens(self) -> int:
        """Number of response tokens that are trained."""
        return int(np.count_nonzero(self.trained))

    @property
    def versions(self) -> set[int]:
        """Weight versions of its response tokens, trained or not."""
        return set(_counts(np.asarray(self.weight_versions)))

    @property
    def trained_versions(self) -> dict[int, int]:
        """The number of its trained tokens of each weight version, by version."""
        versions, mask = np.asarray(self.weight_versions), np.asarray(self.loss_mask, dtype=bool)
        return _counts(versions if mask.all() else versions[mask])

    def with_columns(self, **columns: Any) -> "Sample":
        """This sample with more columns, or with other values of them; everything else is shared."""
        return replace(self, columns={**self.columns, **columns})

    def num_places(self, kind: ColumnType) -> int:
        """Entries of a column of this type."""
        if kind.defined is Defined.sequence:
            return 1
        if kind.defined is Defined.sampled:
            return self.num_trained_tokens
        return len(self.tokens if kind.defined is Defined.everywhere else self.loss_mask)

    def values(self, kind: ColumnType) -> Any:
        """The values of a column: a number for all places, or an array with an entry for each.

        Raises `SampleError` if there are none and the column has no fill, or if their number is not that of the places.
        """
        given = self.columns.get(kind.name)
        if given is None:
            given = self._own(kind)
        if isinstance(given, (int, float, np.number)) and not kind.shape:
            return given
        if given is None:
            raise SampleError(f"{self._where()}: no column {kind.name!r}")
        array = np.asarray(given, dtype=kind.dtype)
        expected = (self.num_places(kind), *kind.shape)
        if array.shape in ((), kind.shape) and array.shape != expected:
            return np.broadcast_to(array, expected)
        if array.shape != expected:
            shapes = " × ".join(map(str, array.shape)), " × ".join(map(str, expected))
            counted = f"has {shapes[0]} entries for {shapes[1]} {kind.defined.value} places"
            raise SampleError(f"{self._where()}: column {kind.name!r} {counted}")
        return array

    def _own(self, kind: ColumnType) -> Any:
        """A column that a field holds, else the fill; a single number for versions that are all the same, as they usually are."""
        if kind.name in IDENTITY:
            return getattr(self, kind.name)
        held = getattr(self, FIELD_OF[kind.name]) if kind.name in FIELD_OF else None
        if held is None or (not len(held) and (len(self.loss_mask) or kind.fill is not None)):
            return kind.fill
        array = np.asarray(held)
        is_one = kind.name == VERSION.name and len(array) and (array == array[0]).all()
        return int(array[0]) if is_one else array

    def to_columns(self) -> None:
        """Converts the numbers of each token to columns. Raises `SampleError` for values that are not such numbers."""
        for name, dtype in COLUMNS.items():
            try:
                setattr(self, name, Column(getattr(self, name), dtype))
            except (TypeError, ValueError, OverflowError) as error:
                raise SampleError(f"{self._where()}: {name}: {error}") from error

    def validate(self, *, num_logprobs: int = 0, routed_experts: bool = False) -> None:
        """Raises `SampleError`, naming the rollout, if lengths disagree, the prompt is empty or a number is missing.

        With `num_logprobs` every trained token must have the likeliest tokens in its place, with `routed_experts` every token
        before the last trained one its experts.
        """
        length = self.response_length
        for name in ("loss_mask", "rollout_log_probs", "weight_versions"):
            if len(getattr(self, name)) != length:
                raise SampleError(f"{self._where()}: {name} has {len(getattr(self, name))} entries for {length} response tokens")
        if len(self.tokens) <= length:
            raise SampleError(f"{self._where()}: the prompt is empty ({len(self.tokens)} tokens, {length} of them response)")
        mask, logprobs = np.asarray(self.loss_mask), np.asarray(self.rollout_log_probs, dtype=np.float64)
        if (neither := (mask != 0) & (mask != 1)).any():
            position = int(neither.argmax())
            raise SampleError(f"{self._where()}: loss_mask is {mask[position]} at response token {position}, not 0 or 1")
        if (missing := (mask == 1) & ~np.isfinite(logprobs)).any():
            position = int(missing.argmax())
            raise SampleError(f"{self._where()}: logprob {logprobs[position]} at trainable response token {position}")
        for name, values in self.columns.items():
            if not _are_numbers(values):
                raise SampleError(f"{self._where()}: column {name!r} holds no numbers of one shape: {str(values)[:80]}")
        if num_logprobs:
            found = self.values(replace(TOP_IDS, shape=(num_logprobs,), fill=None))[self.trained]
            if (missing := found[:, 0] < 0).any():
                place = int(missing.argmax())
                where = f"trained token {place}: samples made by context.samples, or by a session, have them"
                raise SampleError(f"{self._where()}: no likeliest tokens (rollout.num_logprobs={num_logprobs}) at {where}")
        if routed_experts:
            self._check_experts()

    def _check_experts(self) -> None:
        """Raises `SampleError` if a token that a trained one depends on has no experts."""
        remedy = "samples made by context.samples, or by a session, have them"
        if (rows := self.columns.get(ROUTED_EXPERTS.name)) is None:
            raise SampleError(f"{self._where()}: no routed experts (trainer.routing_replay=rollout): {remedy}")
        array, trained = np.asarray(rows), np.flatnonzero(self.trained)
        if array.ndim != 3 or len(array) != len(self.tokens):
            raise SampleError(f"{self._where()}: routed experts of shape {array.shape} for {len(self.tokens)} tokens")
        last = len(self.tokens) - self.response_length + int(trained[-1]) if len(trained) else 0
        if (missing := array[:last, 0, 0] == unknown(array.dtype)).any():
            raise SampleError(f"{self._where()}: no routed experts of token {int(missing.argmax())} of {last}: {remedy}")

    def _where(self) -> str:
        return f"rollout {self.rollout_id} of group {self.group_index}"

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        written = {name: value for name, value in as_dict(self).items() if name not in ADDED or value != _DEFAULTS[name]}
        if self.columns:
            written["columns"] = {name: _written(value) for name, value in self.columns.items()}
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        """Reads what `to_dict` wrote, with lists or the text of columns; an unknown key is an error, not an attribute."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise SampleError(f"unknown sample fields {sorted(unknown)}")
        stop_reason = data.get("stop_reason")
        columns: dict[str, Any] = {name: Column.read(data[name], dtype) for name, dtype in COLUMNS.items() if name in data}
        if "columns" in data:
            columns["columns"] = {name: _read(value) for name, value in data["columns"].items()}
        return cls(
            **{
                **data,
                **columns,
                "status": Status(data.get("status", "pending")),
                "stop_reason": StopReason(stop_reason) if stop_reason else None,
            }
        )


_DEFAULTS = {name: getattr(Sample(), name) for name in ADDED}


def _written(values: Any) -> Any:
    """A list, as the type of a column is known only to the algorithm; a table keeps its type and its bytes."""
    array = np.asarray(values)
    return array.tolist() if array.ndim < 2 else table_to_dict(array)


def _read(written: Any) -> Any:
    return table_from_dict(written) if isinstance(written, dict) else written


def as_dict(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name. Values are not copied, because copying every token would be the largest cost of all."""
    return {item.name: getattr(instance, item.name) for item in fields(instance)}


def _counts(versions: np.ndarray) -> Counter[int]:
    """Counts how often each weight version occurs; the usual case of a single version is the fast one."""
    if not versions.size:
        return Counter()
    first, last = int(versions.min()), int(versions.max())
    if first == last:
        return Counter({first: versions.size})
    found, counts = np.unique(versions, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist())))


def _are_numbers(values: Any) -> bool:
    try:
        return np.asarray(values).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False
