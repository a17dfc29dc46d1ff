"""`TrainSample`: one sequence as the trainer takes it."""

from dataclasses import dataclass, field

from vime.types.column import Integers, Reals


@dataclass(kw_only=True, slots=True)
class TrainSample:
    """One sequence as the trainer takes it, without identity and with a fixed weight in the loss.

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
    """The weight version of each response token; empty if all are of the current weights."""
    version: int = 0
    """The version of the weights in training; a token's staleness is this minus its own version."""

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.loss_mask)
