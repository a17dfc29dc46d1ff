"""Step 8, an algorithm of your own: GRPO in which a rollout's advantage shrinks with each query that it makes.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.tool.generate \
        method.reward=agentic.tutorial.tool.reward trainer.num_steps=4 \
        algorithm.name=custom algorithm.object=agentic.tutorial.algorithm.FewQueries +algorithm.options.price=0.05
"""

from dataclasses import dataclass
from typing import Any

from vime import Algorithm, Columns, Group, Loss, Tokens


@dataclass
class Options:
    """Settings below `algorithm.options`, typed and checked before anything starts."""

    price: float = 0.05
    """The cost of a query, in units of the reward."""


class FewQueries(Algorithm):
    """The reward less the price of its queries, minus the mean of its group; the loss is REINFORCE's."""

    Config = Options

    def advantages(self, groups: list[Group], known: Any) -> Columns:
        """One number for each rollout; runs on the driver."""
        found: dict[Any, Any] = {}
        for group in groups:
            counted = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
            worth = [rollout.reward - self.options.price * rollout.counts.get("tool_calls", 0) for rollout in counted]
            mean = sum(worth) / len(worth) if worth else 0.0
            found |= {rollout.rollout_id: value - mean for rollout, value in zip(counted, worth, strict=True)}
        return Columns({"advantage": found})

    def loss(self, tokens: Tokens) -> Loss:
        """One number for each trained token of a micro-batch; runs on the trainer."""
        return Loss(terms={"policy": -tokens["advantage"] * tokens.logprobs})
