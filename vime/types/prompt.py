"""What an agent is given and what one model call returns: a prompt, the sampling parameters, a turn."""

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Prompt:
    """One row of data.

    Example: `Prompt(index=7, messages=[{"role": "user", "content": "2+2?"}], ground_truth=["4"], metadata={"context": …})`.
    `index` is the position in the epoch-ordered stream, so it never repeats within a run; `row` is the row's number.
    """

    index: int
    row: int
    messages: list[Message]
    ground_truth: list[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    dataset: str = "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters of the trained model; they are the trainer's, not the agent's."""

    temperature: float
    top_p: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call: sampled ids are the truth, text is derived.

    Example: `Turn(prompt_ids=[1, 5], output_ids=[9, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 3], finish_reason="stop",
    message={"role": "assistant", "content": "hi"})`; logprobs are natural logarithms under the sampling temperature.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    finish_reason: str
    message: Message
    usage: tuple[int, int] | None = None
    """Tokens read and written, as an endpoint counted them whose ids are not seen; None where ids are."""
    seconds: float = 0.0
    """From the request that was answered to its last token: without waiting for a sync, and without servers that were lost or
    attempts that failed before. A turn that is not sampled again has the seconds of when it was."""

    @property
    def text(self) -> str:
        """The reply's text without special tokens."""
        return self.message["content"]
