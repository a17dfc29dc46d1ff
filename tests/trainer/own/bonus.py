"""A second term of the loss, on a column that the algorithm's own advantages add, with weights of its own."""

from dataclasses import dataclass

import torch

from vime.algorithm.algorithm import Columns
from vime.algorithm.policy_gradient import PolicyGradient
from vime.types import ColumnType


@dataclass
class Options:
    """The factor of the second term."""

    coefficient: float = 0.3


class Bonus(PolicyGradient):
    """The policy gradient, and a target for each logprob: minus the place of its token among those that are trained."""

    Config = Options
    columns = (ColumnType(name="target_logprob"),)

    def advantages(self, groups, known):
        """The advantages of the policy gradient, and the targets."""
        found = super().advantages(groups, known)
        targets = {(s.rollout_id, s.order): [-1.0 - n for n in range(s.num_trained_tokens)] for s in known}
        return Columns({**found.values, "target_logprob": targets}, metrics=found.metrics, shown=found.shown)

    def loss(self, tokens):
        """The squared distance of each logprob to its target is not averaged: every token weighs the same constant."""
        found = super().loss(tokens)
        distance = (tokens.logprobs - tokens["target_logprob"]).square()
        found.terms = {**found.terms, "distance": distance}
        found.weights = {"distance": torch.full_like(distance, self.options.coefficient / 100)}
        return found
