"""`Turn`: what one model call gave. The same object goes from the client of the server to the sample that is trained."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime.types.column import Column, Integers, Reals

Message = dict[str, Any]
NUMBERS = {"prompt_ids": np.int32, "output_ids": np.int32, "logprobs": np.float32, "weight_versions": np.int32}
"""Fields of a turn with a number for each token, and the type of these numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call: sampled ids are the truth, text is derived.

    Example: `Turn(prompt_ids=[1, 5], output_ids=[9, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 3], finish_reason="stop",
    message={"role": "assistant", "content": "hi"})`; logprobs are natural logarithms under the sampling temperature.

    Lists become read-only columns, which read like lists (`vime.types.Column`). As nobody can change a turn, all who need it hold
    the same one. A client knows neither prompt nor message; `context.models[name]` adds them and shares the rest.
    """

    prompt_ids: Integers = field(default_factory=list)
    output_ids: Integers = field(default_factory=list)
    logprobs: Reals = field(default_factory=list)
    weight_versions: Integers = field(default_factory=list)
    finish_reason: str = ""
    """`stop` or `length`, an endpoint's own word, or nothing if the reply has not ended."""
    message: Message = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    """Tokens read and written, as an endpoint counted them whose ids are not seen; None where ids are."""
    seconds: float = 0.0
    """From the request that was answered to its last token: without waiting for a sync, and without servers that were lost or
    attempts that failed before. A turn that is not sampled again has the seconds of when it was."""
    key: str = ""
    """A digest of what was asked (model, prompt and limit), by which a rollout that is run again finds the turn."""

    def __post_init__(self) -> None:
        """Lists, or the text of columns, become columns."""
        for name, dtype in NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, Column):
                object.__setattr__(self, name, Column.read(value, dtype))

    @property
    def text(self) -> str:
        """The reply's text without special tokens."""
        return self.message.get("content", "")

    @classmethod
    def joined(cls, pieces: Iterable["Turn"], *, finish_reason: str = "", seconds: float = 0.0) -> "Turn":
        """The turn whose tokens came in these pieces."""
        parts = list(pieces)
        return cls(
            output_ids=_end_to_end([part.output_ids for part in parts], NUMBERS["output_ids"]),
            logprobs=_end_to_end([part.logprobs for part in parts], NUMBERS["logprobs"]),
            weight_versions=_end_to_end([part.weight_versions for part in parts], NUMBERS["weight_versions"]),
            finish_reason=finish_reason,
            seconds=seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """What of a turn is kept until its rollout is run again, without prompt and message; `Turn(**…)` reads it back."""
        names = ("key", "output_ids", "logprobs", "weight_versions", "finish_reason", "seconds")
        return {name: getattr(self, name) for name in names}


def _end_to_end(columns: list[Integers] | list[Reals], dtype: Any) -> Column[Any]:
    return Column(np.concatenate([np.zeros(0, dtype), *map(np.asarray, columns)]), dtype)
