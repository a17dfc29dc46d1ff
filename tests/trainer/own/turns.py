"""An advantage that differs per turn: the later a turn of a rollout, the more of the advantage it gets."""

from dataclasses import dataclass

import numpy as np

from vime.algorithm.algorithm import Columns
from vime.algorithm.policy_gradient import PolicyGradient


@dataclass
class Options:
    """The share that a turn has of what the next one gets."""

    discount: float = 0.5


class PerTurn(PolicyGradient):
    """The policy gradient with discounted turns."""

    Config = Options

    def advantages(self, groups, known):
        """One number for each run of sampled tokens."""
        given = super().advantages(groups, known).values["advantage"]
        found = {}
        for sequence in known:
            trained = sequence.trained
            num_turns = int((trained & ~np.concatenate([[False], trained[:-1]])).sum())
            value = given[sequence.rollout_id]
            shares = [self.options.discount ** (num_turns - 1 - turn) for turn in range(num_turns)]
            found[sequence.rollout_id, sequence.order] = [value * share for share in shares]
        return Columns({"advantage": found}, shown=given)
