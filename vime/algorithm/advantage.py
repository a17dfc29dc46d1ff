"""Advantages of rollouts within their group, by identity: a missing or failed member never shifts another's baseline.

GRPO (arXiv 2402.03300, section 4.1.2): A_i = (R_i - mean(R)) / std(R) over the rollouts of a prompt; without the division
it is Dr. GRPO's (arXiv 2503.20783). Only rollouts whose stop reason counts enter the baseline (`vime.types.COUNTS`).
"""

from statistics import fmean, stdev

from vime.config import AlgorithmConfig, Normalization
from vime.types import Group

EPSILON = 1e-6


def group_advantages(config: AlgorithmConfig, groups: list[Group]) -> dict[int, float]:
    """Advantage of every trained rollout by `rollout_id`.

    A group of one, or one whose rewards are all equal, has advantages of zero.
    """
    advantages: dict[int, float] = {}
    for group in groups:
        rewards = {r.rollout_id: r.reward for r in group.rollouts if r.counting.in_baseline}
        if not rewards:
            continue
        mean = fmean(rewards.values())
        scale = 1.0
        if config.normalization is Normalization.std:
            scale = (stdev(rewards.values()) if len(rewards) > 1 else 0.0) + EPSILON
        for rollout in group.rollouts:
            if rollout.counting.trained:
                centred = rewards[rollout.rollout_id] - mean
                advantages[rollout.rollout_id] = centred / scale if len(rewards) > 1 else 0.0
    return advantages


def has_signal(group: Group) -> bool:
    """True if the rewards in the group's baseline differ."""
    rewards = {rollout.reward for rollout in group.rollouts if rollout.counting.in_baseline}
    return len(rewards) > 1
