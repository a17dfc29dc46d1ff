"""slime-agentic's advantage as `algorithm.advantage`: (r - mean) / deviation over a group, with the deviation over n, clipped.

The authors divide by the deviation over n - 1 instead, which is `algorithm.normalization=std`, and clip at 3 as well. In a group
of n rollouts no advantage exceeds √(n - 1) here and (n - 1) / √n there: 2.65 and 2.47 with the published 8 rollouts. Clipping has
an effect only in groups of 11 rollouts or more.
"""

from statistics import fmean, pstdev

from vime.config import AlgorithmConfig
from vime.types import Group

CLIP = 3.0
EPSILON = 1e-6


def clipped(config: AlgorithmConfig, groups: list[Group]) -> dict[int, float]:
    """Advantages by `rollout_id`; 0 throughout a group whose rewards are all equal."""
    found: dict[int, float] = {}
    for group in groups:
        rollouts = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
        if not rollouts:
            continue
        rewards = [rollout.reward for rollout in rollouts]
        mean, deviation = fmean(rewards), pstdev(rewards)
        for rollout in rollouts:
            if rollout.counting.trained:
                score = (rollout.reward - mean) / (deviation + EPSILON) if deviation > 0 else 0.0
                found[rollout.rollout_id] = max(-CLIP, min(CLIP, score))
    return found
