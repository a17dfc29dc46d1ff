"""The published advantage as `algorithm.advantage`: rewards of a group centred, divided by their deviation and clipped.

With 8 rollouts no score is beyond 2.65, so that the clipping at 3 only matters in larger groups.
"""

from agentic.toolorchestra.rewards import group_advantages
from vime.config import AlgorithmConfig
from vime.types import Group


def clipped(config: AlgorithmConfig, groups: list[Group]) -> dict[int, float]:
    """slime-agentic's: divided by the deviation over n."""
    return _advantages(groups, unbiased=False)


def clipped_unbiased(config: AlgorithmConfig, groups: list[Group]) -> dict[int, float]:
    """The authors': divided by the deviation over n - 1."""
    return _advantages(groups, unbiased=True)


def _advantages(groups: list[Group], *, unbiased: bool) -> dict[int, float]:
    """By `rollout_id`; 0 in groups without a difference, whose samples `group_reward` has marked already."""
    found: dict[int, float] = {}
    for group in groups:
        rollouts = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
        rewards = [rollout.reward for rollout in rollouts]
        scores = group_advantages(rewards, kept=[True] * len(rewards), min_deviation=0.0, unbiased=unbiased)
        for rollout, score in zip(rollouts, scores, strict=True):
            if rollout.counting.trained:
                found[rollout.rollout_id] = score or 0.0
    return found
