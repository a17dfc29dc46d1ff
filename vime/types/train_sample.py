"""`TrainSample`: one sequence as the trainer takes it."""

from dataclasses import dataclass, field

from vime.types.column import Integers, Reals


@dataclass(kw_only=True, slots=True)
class TrainSample:
    """One sequence as the trainer takes it: identity is gone, its weight in the loss is fixed.

    The loss of an update is the sum over its samples and response tokens t of `token_weight * loss_mask[t] * loss[t]`, so
    packing, sharding and the order of samples cannot change it.
    Example: `TrainSample(tokens=[1, 5, 9, 2], loss_mask=[1, 1], rollout_log_probs=[-0.1, -0.7], advantage=0.5,
    token_weight=0.25)` holds two prompt and two response tokens.
    """

    tokens: Integers
    loss_mask: Integers
    rollout_log_probs: Reals
    advantage: float
    token_weight: float
    weight_versions: Integers = field(default_factory=list)
    """Of each response token; empty if all are of the current weights."""
    version: int = 0
    """Of the weights in training: a token's staleness is this less its own."""

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.loss_mask)
