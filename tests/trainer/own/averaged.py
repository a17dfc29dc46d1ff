"""An algorithm whose second weights are a running average of the policy, towards which it is pulled."""

from dataclasses import dataclass

from vime.algorithm.advantage import group_advantages
from vime.algorithm.algorithm import Algorithm, Columns, Loss, average


@dataclass
class Options:
    """The average's decay, and the strength of its pull."""

    decay: float = 0.5
    coefficient: float = 2.0


class Averaged(Algorithm):
    """REINFORCE with a squared log ratio to the average."""

    Config = Options

    @property
    def needs(self):
        """Logprobs under the average, which the trainer keeps."""
        return (average(self.options.decay),)

    def advantages(self, groups, known):
        """Rewards compared within their group."""
        return Columns({"advantage": group_advantages(self.config, groups)})

    def loss(self, tokens):
        """-A log p + coefficient / 2 · (log p - log average)²."""
        pull = (tokens.logprobs - tokens["average"]).square() / 2
        return Loss(terms={"policy": -tokens["advantage"] * tokens.logprobs + self.options.coefficient * pull})
