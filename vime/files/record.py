"""The record of a sample in the files of a run: the text of each turn, and the numbers of each token.

The files of rollouts and of evaluations share this form.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from vime.config import RolloutDetail
from vime.types import COLUMNS, Column, Integers, Sample

PROMPT, REPLY, ENVIRONMENT = "prompt", "reply", "environment"
VERSIONS = "weight_versions"
TRAINER = "trainer_log_probs"


class Recorder:
    """Makes the rows of samples, in the detail that `logger.rollouts` asks for."""

    def __init__(self, detail: RolloutDetail, text: Callable[[Integers], str] | None = None) -> None:
        """`text` decodes tokens; without it, turns have no text."""
        self.detail, self._text = detail, text

    def turns(self, sample: Sample) -> list[dict[str, Any]]:
        """The pieces of a sample in order, see `turns` below."""
        return turns(sample, self._text)

    def row(self, sample: Sample, *, advantage: float | None = None, logprobs: np.ndarray | None = None) -> dict[str, Any]:
        """The record of a sample; columns in it are written by `vime.files.serialization.to_json(…, compact=True)`.

        `logprobs` are the trainer's, of its trained tokens.
        """
        row: dict[str, Any] = {
            "response": sample.response,
            "num_prompt_tokens": len(sample.tokens) - sample.response_length,
            "response_length": sample.response_length,
            "reward": sample.reward,
            "metadata": sample.metadata,
        }
        if advantage is not None:
            row["advantage"] = advantage
        if sample.remove_sample:
            row["remove_sample"] = True
        if self.detail in (RolloutDetail.turns, RolloutDetail.tokens):
            row["turns"] = self.turns(sample)
        if self.detail is RolloutDetail.tokens:
            row |= {name: Column(getattr(sample, name), dtype) for name, dtype in COLUMNS.items()}
            versions = row[VERSIONS].array
            if versions.size and (versions == versions[0]).all():
                row[VERSIONS] = int(versions[0])
            if logprobs is not None:
                row[TRAINER] = Column(_at_trained(sample, logprobs), np.float32)
        return row


def _at_trained(sample: Sample, values: np.ndarray) -> np.ndarray:
    """Values of the trained tokens at their places in the response, with 0 at the others, as the sampler's logprobs have."""
    trained = np.flatnonzero(np.asarray(sample.loss_mask))
    assert len(trained) == len(values), f"{len(values)} logprobs for {len(trained)} trained tokens"
    found = np.zeros(sample.response_length, dtype=np.float32)
    found[trained] = values
    return found


def turns(sample: Sample, text: Callable[[Integers], str] | None) -> list[dict[str, Any]]:
    """The pieces of a sequence in order: its prompt, then replies and environment text, told apart by the loss mask.

    Example: `[{"kind": "prompt", "num_tokens": 82, "text": "<|im_start|>…"}, {"kind": "reply", "num_tokens": 24, "text": …}]`. A
    reply that is trained in another sequence, or that no client received, counts as environment.
    """
    num_prompt = len(sample.tokens) - sample.response_length
    mask = np.asarray(sample.loss_mask, dtype=np.int8)
    changes = (np.flatnonzero(np.diff(mask)) + 1).tolist() if mask.size else []
    edges = [num_prompt + place for place in (0, *changes, mask.size)]
    pieces = [(PROMPT, 0, num_prompt)]
    pieces += [(REPLY if mask[a - num_prompt] else ENVIRONMENT, a, b) for a, b in itertools.pairwise(edges) if b > a]
    found: list[dict[str, Any]] = []
    for kind, start, end in pieces:
        found.append({"kind": kind, "num_tokens": end - start})
        if text is not None:
            found[-1]["text"] = text(sample.tokens[start:end])
    return found
