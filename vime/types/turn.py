"""`Turn`: the result of one model call, shared by everything from the server's client to the sample that is trained."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime.types.column import Column, Integers, Reals
from vime.types.routed_experts import RoutedExperts

Message = dict[str, Any]
NUMBERS = {
    **{"prompt_ids": np.int32, "output_ids": np.int32, "logprobs": np.float32, "weight_versions": np.int32},
    **{"top_ids": np.int32, "top_logprobs": np.float32},
}
"""Fields of a turn with numbers for its tokens, and the type of these numbers."""
_EMPTY: dict[Any, Column[Any]] = {dtype: Column(np.zeros(0, dtype), dtype) for dtype in NUMBERS.values()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call: sampled ids are the truth, text is derived.

    Example: `Turn(prompt_ids=[1, 5], output_ids=[9, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 3], finish_reason="stop",
    message={"role": "assistant", "content": "hi"})`; logprobs are natural logarithms under the sampling temperature.

    Lists are converted to columns, which are read-only and otherwise behave like lists (`vime.types.Column`); so a turn can be
    shared and never needs to be copied. Clients leave prompt and message empty; in a node of a trajectory
    `prompt_ids` are what was added behind the node before it, and a turn that an agent gets has the whole prompt.
    """

    prompt_ids: Integers = field(default_factory=lambda: _EMPTY[np.int32])
    output_ids: Integers = field(default_factory=lambda: _EMPTY[np.int32])
    logprobs: Reals = field(default_factory=lambda: _EMPTY[np.float32])
    weight_versions: Integers = field(default_factory=lambda: _EMPTY[np.int32])
    top_ids: Integers = field(default_factory=lambda: _EMPTY[np.int32])
    """The likeliest tokens at each place, `num_logprobs` per sampled token, end to end; -1 in places without one. Empty unless
    they were asked for (`rollout.num_logprobs`)."""
    top_logprobs: Reals = field(default_factory=lambda: _EMPTY[np.float32])
    """Their logprobs."""
    routed_experts: RoutedExperts | None = None
    """The experts of the tokens that the server has read for this turn and that no turn before it has (`trainer.routing_replay`),
    placed in the whole sequence of prompt and reply; None unless they were asked for."""
    finish_reason: str = ""
    """`stop`, `length`, or the reason that an endpoint gives; empty if the reply is not complete."""
    message: Message = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    """Tokens read and written, as counted by an endpoint that does not show their ids; None where the ids are known."""
    seconds: float = 0.0
    """Time from the request that was answered to its last token, without waiting for a sync, lost servers and failed attempts. A
    turn that was kept from an earlier run has the time that it took then."""
    key: str = ""
    """A digest of the request (model, prompt and limit), by which a restarted rollout finds the turn."""

    def __post_init__(self) -> None:
        """Converts lists, or the text of columns, to columns."""
        for name, dtype in NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, Column):
                object.__setattr__(self, name, Column.read(value, dtype))
        object.__setattr__(self, "routed_experts", RoutedExperts.read(self.routed_experts))

    @property
    def num_logprobs(self) -> int:
        """Likeliest tokens recorded for each sampled one."""
        return len(self.top_ids) // max(len(self.output_ids), 1)

    @property
    def text(self) -> str:
        """The reply's text without special tokens."""
        return self.message.get("content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the message, in OpenAI's form; read where the model's parsers were asked to (`Conversation`)."""
        return self.message.get("tool_calls") or []

    @classmethod
    def joined(cls, pieces: Iterable["Turn"], *, finish_reason: str = "", seconds: float = 0.0) -> "Turn":
        """The turn whose tokens arrived in these pieces, the prompt with the first."""
        parts = list(pieces)
        return cls(
            prompt_ids=parts[0].prompt_ids if parts else [],
            output_ids=_end_to_end([part.output_ids for part in parts], NUMBERS["output_ids"]),
            logprobs=_end_to_end([part.logprobs for part in parts], NUMBERS["logprobs"]),
            weight_versions=_end_to_end([part.weight_versions for part in parts], NUMBERS["weight_versions"]),
            top_ids=_end_to_end([part.top_ids for part in parts], NUMBERS["top_ids"]),
            top_logprobs=_end_to_end([part.top_logprobs for part in parts], NUMBERS["top_logprobs"]),
            routed_experts=RoutedExperts.joined(part.routed_experts for part in parts),
            finish_reason=finish_reason,
            seconds=seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """The part of a turn that is kept for a restarted rollout, without prompt and message; `Turn(**…)` reads it back."""
        names = ("key", "output_ids", "logprobs", "weight_versions", "finish_reason", "seconds")
        recorded = ("top_ids", "top_logprobs") if self.num_logprobs else ()
        experts = {} if self.routed_experts is None else {"routed_experts": self.routed_experts.to_dict()}
        return {name: getattr(self, name) for name in (*names, *recorded)} | experts


def _end_to_end(columns: list[Integers] | list[Reals], dtype: Any) -> Column[Any]:
    arrays = [column for column in columns if len(column)]
    return Column(np.concatenate(arrays), dtype) if len(arrays) > 1 else Column(arrays[0] if arrays else _EMPTY[dtype], dtype)
