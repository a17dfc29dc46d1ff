"""`Sample`: one trainable token sequence of a rollout."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from vime.errors import SampleError
from vime.types.column import Column, Integers, Reals
from vime.types.identity import member_of
from vime.types.stop_reason import Status, StopReason
from vime.types.turn import Message

COLUMNS = {"tokens": np.int32, "loss_mask": np.uint8, "rollout_log_probs": np.float32, "weight_versions": np.int32}
"""Fields of a sample with one number per token, and the type of these numbers once the sample has been accepted."""


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
    sample is accepted.
    """

    prompt: str | list[Message] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    tokens: Integers = field(default_factory=list)
    response: str = ""
    response_length: int = 0
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

    @property
    def question(self) -> str:
        """The text of its prompt, or of the last message of its prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]

    @property
    def member(self) -> int:
        """The place of its rollout in the group, from 0."""
        return member_of(self.rollout_id)

    @property
    def num_trained_tokens(self) -> int:
        """Response tokens in the loss mask."""
        return int(np.count_nonzero(np.asarray(self.loss_mask)))

    @property
    def versions(self) -> set[int]:
        """Weight versions of its response tokens, trained or not."""
        return set(_counts(np.asarray(self.weight_versions)))

    @property
    def trained_versions(self) -> dict[int, int]:
        """How many of its trained tokens are of each weight version, by version."""
        versions, mask = np.asarray(self.weight_versions), np.asarray(self.loss_mask, dtype=bool)
        return _counts(versions if mask.all() else versions[mask])

    def to_columns(self) -> None:
        """Converts the numbers of each token to columns. Raises `SampleError` for values that are not such numbers."""
        for name, dtype in COLUMNS.items():
            try:
                setattr(self, name, Column(getattr(self, name), dtype))
            except (TypeError, ValueError, OverflowError) as error:
                raise SampleError(f"{self._where()}: {name}: {error}") from error

    def validate(self) -> None:
        """Raises `SampleError`, naming the rollout, if lengths disagree, the prompt is empty or a logprob is missing."""
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

    def _where(self) -> str:
        return f"rollout {self.rollout_id} of group {self.group_index}"

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return as_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        """Reads what `to_dict` wrote, with lists or the text of columns; an unknown key is an error, not an attribute."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise SampleError(f"unknown sample fields {sorted(unknown)}")
        stop_reason = data.get("stop_reason")
        columns = {name: Column.read(data[name], dtype) for name, dtype in COLUMNS.items() if name in data}
        return cls(
            **{
                **data,
                **columns,
                "status": Status(data.get("status", "pending")),
                "stop_reason": StopReason(stop_reason) if stop_reason else None,
            }
        )


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
