"""The input of an agent: a prompt and the sampling parameters."""

from dataclasses import dataclass, field
from typing import Any

from vime.types.turn import Message


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

    @property
    def question(self) -> str:
        """The text of its last message; empty if an environment speaks first."""
        content = self.messages[-1]["content"] if self.messages else ""
        return content if isinstance(content, str) else str(content)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its row, with the text of its question as `question` and its messages as `prompt`."""
        asked = {"question": self.question, "prompt": [dict(message) for message in self.messages]} if self.messages else {}
        return self.metadata | asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters of the trained model; they are the trainer's, not the agent's."""

    temperature: float
    top_p: float
    top_k: int | None = None
    num_logprobs: int = 0
    """Likeliest tokens that are recorded with their logprobs beside each sampled one."""
    routed_experts: bool = False
    """True if the experts of every token are recorded, for the trainer to replay."""
