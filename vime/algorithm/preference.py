"""`Preference` (`algorithm=dpo`): direct preference optimization on pairs of replies (arXiv 2305.18290, equation 7).

The loss of a pair is -log sigmoid(margin), margin = beta · (log p - log p_ref of the chosen reply, minus that of the rejected
one), where the logprob of a reply is the sum over its tokens. Its gradient is a cross-entropy whose tokens have the weight beta ·
sigmoid(-margin), positive for the chosen and negative for the rejected reply. So one forward pass gives the margins, and packing,
sharding and the order of sequences cannot change anything, since a pair need not be in one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

import numpy as np

from vime.algorithm.algorithm import OLD, REFERENCE, Algorithm, Columns, Loss, Tokens
from vime.config.ranges import Range
from vime.types import Group, Sample

CHOSEN, REJECTED = "chosen", "rejected"
"""Seats of the two sequences of a pair."""


@dataclass(kw_only=True, slots=True)
class Options:
    """Options of direct preference optimization."""

    beta: Annotated[float, Range(above=0)] = 0.1
    """Strength of the pull towards the reference: the higher, the closer the policy stays to it."""


class Preference(Algorithm):
    """Direct preference optimization; the reference are the weights, or the adapters, that the run begins with."""

    Config = Options
    is_supervised = True
    is_paired = True
    needs = needs_before = (OLD, REFERENCE)

    def advantages(self, groups: list[Group], known: Sequence[Sample]) -> Columns:
        """The weight of each sequence of `known`, which has all pairs (`Sample.pair`) of the step."""
        gains: dict[int, dict[str, float]] = {}
        for sequence in known:
            gain = np.asarray(sequence.columns["old"], np.float64) - np.asarray(sequence.columns["reference"], np.float64)
            gains.setdefault(sequence.pair, {})[sequence.seat] = float(gain.sum())
        margins = {pair: self.options.beta * (gain[CHOSEN] - gain[REJECTED]) for pair, gain in gains.items()}
        slopes = {pair: self.options.beta * float(np.exp(-np.logaddexp(0.0, margin))) for pair, margin in margins.items()}
        signed = {(s.rollout_id, s.order): slopes[s.pair] * (1 if s.seat == CHOSEN else -1) for s in known}
        metrics = {
            "train/preference_loss": fmean(float(np.logaddexp(0.0, -margin)) for margin in margins.values()),
            "train/preference_accuracy": fmean(margin > 0 for margin in margins.values()),
            "train/preference_margin": fmean(margins.values()),
        }
        return Columns({"advantage": signed}, metrics=metrics)

    def loss(self, tokens: Tokens) -> Loss:
        """-log p of each token times its weight; the gradient is that of the pairs' loss, the value is not."""
        return Loss(terms={"policy": -tokens["advantage"] * tokens.logprobs})
