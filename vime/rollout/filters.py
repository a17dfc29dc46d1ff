"""Filters of finished groups for `rollout.filter`: False drops a group, and another prompt takes its place."""

from vime.config import RolloutConfig
from vime.types import Group


def keep_mixed_rewards(config: RolloutConfig, group: Group) -> bool:
    """DAPO's dynamic sampling (arXiv 2503.14476, equation 11): groups whose rewards are all equal teach nothing."""
    rewards = {rollout.reward for rollout in group.rollouts if rollout.counting.in_baseline}
    return len(rewards) > 1
