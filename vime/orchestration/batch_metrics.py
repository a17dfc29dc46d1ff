"""Metrics of a batch of groups: rewards, stop reasons, lengths, times, tools, staleness."""

from collections import Counter
from statistics import fmean

import numpy as np

from vime.types import Group, Rollout, Sample, StopReason

SESSION = "session_"
"""The prefix of the counts of sessions (`vime.gateway.session.AgentSession.statistics`)."""


def batch_metrics(groups: list[Group], *, version: int) -> dict[str, float]:
    """Metrics of the groups that are about to be trained at weight `version`.

    Rewards and their metrics are averaged over the rollouts in the baseline, 0 for those that were stopped before they could be
    scored; staleness is in weight versions, per sampled token.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    counted = [rollout for rollout in rollouts if rollout.counting.in_baseline]
    stops = Counter(rollout.stop_reason for rollout in rollouts)
    metrics = {f"stop/{reason.value}": float(stops[reason]) for reason in StopReason if stops[reason]}
    if not counted:
        return metrics
    for name in sorted({name for rollout in counted for name in rollout.metrics}):
        has_it = [rollout for rollout in counted if name in rollout.metrics or not rollout.samples or rollout.error]
        metrics[f"reward/{name}"] = fmean(rollout.metrics.get(name, 0.0) for rollout in has_it)
    return (
        metrics
        | _times_and_counts(rollouts)
        | _staleness(counted, version)
        | {
            "reward/mean": fmean(rollout.reward for rollout in counted),
            "rollout/turns_mean": fmean(sum(map(num_replies, rollout.samples)) for rollout in counted),
            "rollout/sequences_mean": fmean(len(rollout.samples) for rollout in counted),
            "rollout/response_tokens_mean": fmean(rollout.num_response_tokens for rollout in counted),
            **_same_answer(groups),
            "rollout/truncated_share": fmean(rollout.status.value == "truncated" for rollout in counted),
            "rollout/seconds_mean": fmean(rollout.generation_seconds for rollout in counted),
            "rollout/group_size_min": float(min(sum(r.counting.in_baseline for r in group.rollouts) for group in groups)),
        }
    )


def _same_answer(groups: list[Group]) -> dict[str, float]:
    """The largest share of rollouts that end with one and the same text, over batches of several prompts."""
    texts = Counter(
        rollout.samples[-1].response.strip()
        for group in groups
        for rollout in group.rollouts
        if rollout.counting.in_baseline and rollout.samples
    )
    return {"rollout/same_answer_share": max(texts.values()) / texts.total()} if len(groups) > 1 and texts else {}


def num_replies(sample: Sample) -> int:
    """The stretches of a sequence that the model wrote, each a turn of the agent."""
    mask = np.asarray(sample.loss_mask, dtype=np.uint8)
    return int(np.count_nonzero(mask[1:] > mask[:-1]) + np.count_nonzero(mask[:1]))


def _staleness(counted: list[Rollout], version: int) -> dict[str, float]:
    """Mean, maximum, and the share of tokens of each age as `staleness/<versions>`; also how many rollouts have several."""
    ages: Counter[int] = Counter()
    for rollout in counted:
        for sample in rollout.samples:
            ages.update({version - sampled: count for sampled, count in sample.trained_versions.items()})
    num_tokens = max(ages.total(), 1)
    mixed = [len(set().union(*(sample.versions for sample in rollout.samples))) > 1 for rollout in counted]
    return {
        "rollout/staleness_mean": sum(age * count for age, count in ages.items()) / num_tokens,
        "rollout/staleness_max": float(max(ages, default=0)),
        "rollout/mixed_versions_share": fmean(mixed),
        **{f"staleness/{age}": ages[age] / num_tokens for age in sorted(ages)},
    }


def _times_and_counts(rollouts: list[Rollout]) -> dict[str, float]:
    """Mean seconds of a rollout by kind, and what tools, sandboxes, kept turns and repeated rewards add up to."""
    kinds = sorted({kind for rollout in rollouts for kind in rollout.seconds})
    means = {f"seconds/{kind}": fmean(rollout.seconds.get(kind, 0.0) for rollout in rollouts) for kind in kinds}
    counts: Counter[str] = Counter()
    for rollout in rollouts:
        counts.update(rollout.counts)
    others = {f"count/{name}": float(number) for name, number in sorted(counts.items()) if not name.startswith(SESSION)}
    return means | others | _sessions(counts)


def _sessions(counts: Counter[str]) -> dict[str, float]:
    """Metrics of agents' requests to their model over HTTP, and of how well conversations continue sampled replies."""
    found = Counter({name.removeprefix(SESSION): number for name, number in counts.items() if name.startswith(SESSION)})
    if not (found["calls"] or found["refused"]):
        return {}
    shares = {
        "delivered_share": found["delivered_tokens"] / max(found["tokens"], 1),
        "encoded_share": found["encoded_tokens"] / max(found["prompt_tokens"], 1),
        "calls_per_sequence": found["calls"] / max(found["sequences"], 1),
    }
    forks = [name for name in sorted(found) if name.startswith("fork_")]
    numbers = {name: float(found[name]) for name in ("calls", "retries", "refused", "malformed", *forks)}
    return {f"session/{name}": value for name, value in {**numbers, **shares}.items()}
