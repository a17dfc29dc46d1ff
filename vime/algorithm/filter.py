"""Filters of groups (`rollout.filter`); a dropped group is replaced by the group of another prompt before training."""

from vime.algorithm.advantage import has_signal
from vime.config import RolloutConfig
from vime.types import Group


def dynamic_sampling(config: RolloutConfig, group: Group) -> bool:
    """Keeps groups whose rewards differ, because all others have no gradient (DAPO, arXiv 2503.14476, equation 11)."""
    return has_signal(group)
