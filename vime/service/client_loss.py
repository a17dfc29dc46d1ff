"""The losses that clients of the service choose by name: sums over the tokens of a datum, by the formulas of the Tinker API.

Shape suffixes: N trained tokens of a micro-batch, K targets of a position.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime.algorithm.algorithm import Algorithm, Loss, Tokens
from vime.config import RunConfig
from vime.types import ColumnType
from vime.types.column import TARGET, TOP_IDS, Defined

if TYPE_CHECKING:
    import torch

OBJECT = "vime.service.client_loss.ClientLoss"
CROSS_ENTROPY = "cross_entropy"
NUMBERS: dict[str, dict[str, float]] = {
    CROSS_ENTROPY: {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
}
"""The numbers of each loss with their defaults; those of `gspo` are the paper's (arXiv 2507.18071, section 5.1)."""
RATIO_MASK = ColumnType(name="sequence_ratio_mask")
WEIGHTS = ColumnType(name="target_weights", shape=(0,), defined=Defined.response)
"""Weights of several targets of a position."""


@dataclass(kw_only=True, slots=True)
class ChosenLoss:
    """A loss and its numbers.

    Example: `ChosenLoss(loss="ppo", clip_low_threshold=0.8, clip_high_threshold=1.28)`.
    """

    loss: str = CROSS_ENTROPY
    num_targets: int = 1
    """K: targets of a position, each with a weight of its own; more than one with cross_entropy only."""
    clip_low_threshold: float = 0.0
    clip_high_threshold: float = 0.0
    beta: float = 0.0


class ClientLoss(Algorithm):
    """The loss that a request names. Nothing is averaged: the client has put all factors into weights and advantages."""

    Config = ChosenLoss
    is_supervised = True
    """The client says which logprobs the tokens had; the trainer's are those at temperature 1."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        num_others = self.options.num_targets - 1
        self.reads_top = self.answers_top = num_others > 0
        self.columns = [
            ColumnType(name=TARGET.name, dtype=TARGET.dtype, defined=TARGET.defined),
            *([ColumnType(name=WEIGHTS.name, shape=(num_others + 1,), defined=WEIGHTS.defined)] if num_others else []),
            *([RATIO_MASK] if self.options.loss == "gspo" else []),
        ]

    @property
    def recorded(self) -> list[ColumnType]:
        """The targets behind the first one, in the place of the sampler's likeliest tokens."""
        num_others = self.options.num_targets - 1
        kind = ColumnType(name=TOP_IDS.name, dtype=TOP_IDS.dtype, shape=(num_others,), defined=TOP_IDS.defined)
        return [kind] if num_others else []

    def loss(self, tokens: Tokens) -> Loss:
        """The loss of each token, by the formula of its name (`LOSSES`)."""
        return Loss(terms={"policy": LOSSES[self.options.loss](tokens, self.options)})


def _cross_entropy(tokens: Tokens, _: ChosenLoss) -> "torch.Tensor":
    """-w · log p; the weight of a single target is the token's (`WEIGHT`)."""
    if tokens.top is None:
        return -tokens.logprobs
    weights_NK, is_there_NK = tokens[WEIGHTS.name], tokens["top_ids"] >= 0
    others_N = (weights_NK[:, 1:] * tokens.top.masked_fill(~is_there_NK, 0.0)).sum(1)
    return -(weights_NK[:, 0] * tokens.logprobs + others_N)


def _importance_sampling(tokens: Tokens, _: ChosenLoss) -> "torch.Tensor":
    """-p/q · A, with the probability q of the sampler."""
    return -(tokens.logprobs - tokens["logprob"]).exp() * tokens["advantage"]


def _ppo(tokens: Tokens, chosen: ChosenLoss) -> "torch.Tensor":
    """-min(p/q · A, clip(p/q) · A) (arXiv 1707.06347, equation 7)."""
    return _clipped((tokens.logprobs - tokens["logprob"]).exp(), tokens, chosen)


def _cispo(tokens: Tokens, chosen: ChosenLoss) -> "torch.Tensor":
    """-sg(clip(p/q)) · log p · A (arXiv 2506.13585, equation 4)."""
    ratio_N = (tokens.logprobs.detach() - tokens["logprob"]).exp()
    return -ratio_N.clamp(chosen.clip_low_threshold, chosen.clip_high_threshold) * tokens.logprobs * tokens["advantage"]


def _dro(tokens: Tokens, chosen: ChosenLoss) -> "torch.Tensor":
    """-(log p · A - β/2 · (log p - log q)²), the quadratic loss of DRO (arXiv 2405.19107) with the advantage of the client."""
    return -(tokens.logprobs * tokens["advantage"] - 0.5 * chosen.beta * (tokens.logprobs - tokens["logprob"]).square())


def _gspo(tokens: Tokens, chosen: ChosenLoss) -> "torch.Tensor":
    """PPO's with the ratio of the sequence, whose gradient is each token's (arXiv 2507.18071, equations 7 and 14)."""
    marked_N = (tokens[RATIO_MASK.name] != 0).to(tokens.logprobs.dtype)
    difference_N = (tokens.logprobs.detach() - tokens["logprob"]) * marked_N
    num_sequences = int(tokens.sequences.max()) + 1 if len(tokens.sequences) else 0
    sums = difference_N.new_zeros(num_sequences).index_add_(0, tokens.sequences, difference_N)
    counts = marked_N.new_zeros(num_sequences).index_add_(0, tokens.sequences, marked_N)
    mean_N = (sums / counts.clamp(min=1.0))[tokens.sequences]
    return _clipped((mean_N + tokens.logprobs - tokens.logprobs.detach()).exp(), tokens, chosen)


def _clipped(ratio_N: "torch.Tensor", tokens: Tokens, chosen: ChosenLoss) -> "torch.Tensor":
    clipped_N = ratio_N.clamp(chosen.clip_low_threshold, chosen.clip_high_threshold)
    return -(ratio_N * tokens["advantage"]).minimum(clipped_N * tokens["advantage"])


LOSSES = {
    CROSS_ENTROPY: _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}
CLOSED = {
    "stable_reinforce": "its formula is not public: take importance_sampling, or cispo, which bounds the weights of stale tokens",
    "custom": "custom losses run in the client: call forward_backward_custom",
}
"""Losses of the Tinker API that are refused, with the reason."""
