"""Metrics of a batch of groups: rewards, stop reasons, lengths, staleness."""

from collections import Counter, defaultdict
from statistics import fmean

from vime.types import Group, StopReason


def batch_metrics(groups: list[Group], *, version: int) -> dict[str, float]:
    """Metrics of the groups that are about to be trained at weight `version`.

    Rewards are averaged over the rollouts in the baseline; staleness is in weight versions, per sampled token.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    counted = [rollout for rollout in rollouts if rollout.counting.in_baseline]
    stops = Counter(rollout.stop_reason for rollout in rollouts)
    metrics = {f"stop/{reason.value}": float(stops[reason]) for reason in StopReason if stops[reason]}
    if not counted:
        return metrics
    by_name: dict[str, list[float]] = defaultdict(list)
    for rollout in counted:
        for name, value in rollout.metrics.items():
            by_name[name].append(value)
    metrics |= {f"reward/{name}": fmean(values) for name, values in by_name.items()}
    staleness = [version - v for r in counted for sample in r.samples for v in sample.weight_versions]
    return metrics | {
        "reward/mean": fmean(rollout.reward for rollout in counted),
        "rollout/turns_mean": fmean(len(rollout.samples) for rollout in counted),
        "rollout/response_tokens_mean": fmean(rollout.num_response_tokens for rollout in counted),
        "rollout/truncated_share": fmean(rollout.status.value == "truncated" for rollout in counted),
        "rollout/seconds_mean": fmean(rollout.generation_seconds for rollout in counted),
        "rollout/staleness_mean": fmean(staleness) if staleness else 0.0,
        "rollout/staleness_max": float(max(staleness, default=0)),
    }
