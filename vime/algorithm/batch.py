"""From groups to optimizer updates: advantages, their credit to samples, and the weight of each token in the loss.

All averages are decided here, so the trainer only sums: loss = sum of weight * mask * loss. The order, packing
and sharding of samples cannot change the loss.
"""

import random
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from vime.algorithm.advantage import Advantages, group_advantages, has_signal
from vime.config import Aggregation, AlgorithmConfig, Credit
from vime.types import Group, Rollout, Sample, TrainSample

AdvantageFunction = Callable[[AlgorithmConfig, list[Group]], Mapping[int, Advantages]]


def build_updates(
    config: AlgorithmConfig,
    groups: list[Group],
    *,
    credit: Credit,
    num_updates: int = 1,
    seed: int = 0,
    version: int | None = None,
    advantage: AdvantageFunction = group_advantages,
) -> tuple[list[list[TrainSample]], dict[str, float]]:
    """Splits a batch into `num_updates` parts by rollouts, and turns each part into weighted samples.

    Rollouts that do not count for training and samples marked `remove_sample` are left out; the latter are still part of the
    baseline. `version` is the version of the trainer's weights, from which the staleness of each token follows; without it no
    token is stale. Returns the updates and metrics of the advantages.
    """
    advantages = advantage(config, groups)
    rollouts = [r for group in groups for r in group.rollouts if r.rollout_id in advantages and r.samples]
    rollouts.sort(key=lambda rollout: rollout.rollout_id)
    if num_updates > 1:
        random.Random(seed).shuffle(rollouts)
    parts = [rollouts[start::num_updates] for start in range(num_updates)]
    of_samples = _of_samples(rollouts, advantages)
    weighed = [_weigh(config, part, of_samples, credit, version) for part in parts if part]
    updates = [_without_gradient_left_out(config, samples) for samples in weighed if samples]
    absolute = [fmean(map(abs, value)) if isinstance(value, list) else abs(value) for value in advantages.values() if value != []]
    num_samples = sum(len(rollout.samples) for rollout in rollouts)
    metrics = {
        "train/advantage_mean_absolute": fmean(absolute) if absolute else 0.0,
        "train/num_rollouts": float(len(rollouts)),
        "train/num_samples_masked": float(num_samples - sum(map(len, weighed))),
        "train/num_samples_left_out": float(sum(map(len, weighed)) - sum(map(len, updates))),
        "train/groups_without_signal_share": sum(not has_signal(g) for g in groups) / len(groups) if groups else 0.0,
    }
    return updates, metrics


def _of_samples(rollouts: list[Rollout], advantages: Mapping[int, Advantages]) -> dict[int, float]:
    """The advantage of every sample by its `id()`."""
    found: dict[int, float] = {}
    for rollout in rollouts:
        given = advantages[rollout.rollout_id]
        values = given if isinstance(given, list) else [given] * len(rollout.samples)
        assert len(values) == len(rollout.samples), f"{len(values)} advantages for {len(rollout.samples)} samples"
        found |= {id(sample): value for sample, value in zip(rollout.samples, values)}
    return found


def _weigh(
    config: AlgorithmConfig, rollouts: list[Rollout], advantages: dict[int, float], credit: Credit, version: int | None
) -> list[TrainSample]:
    """The weighted samples of one update, with `advantages` by `id()` of the sample; see `Aggregation` for the averages."""
    counted = {
        r.rollout_id: [(i, s, s.num_trained_tokens) for i, s in enumerate(r.samples) if not s.remove_sample] for r in rollouts
    }
    counted = {rollout_id: [each for each in those if each[2]] for rollout_id, those in counted.items()}
    kept = {rollout_id: those for rollout_id, those in counted.items() if those}
    num_samples = sum(map(len, kept.values()))
    num_tokens = sum(trained for those in kept.values() for _, _, trained in those)
    result = []
    for rollout_id, pairs in kept.items():
        rollout_tokens = sum(trained for _, _, trained in pairs)
        share = 1.0 if credit is Credit.share else 1.0 / len(pairs)
        for order, sample, trained in pairs:
            if config.aggregation is Aggregation.token:
                weight = 1.0 / num_tokens
            elif config.aggregation is Aggregation.sample:
                weight = 1.0 / (num_samples * trained)
            elif config.aggregation is Aggregation.rollout:
                weight = 1.0 / (len(kept) * rollout_tokens)
            elif config.aggregation is Aggregation.nested:
                weight = 1.0 / (len(kept) * len(pairs) * trained)
            else:
                weight = 1.0 / (len(kept) * config.constant_tokens)
            columns = {"logprob": sample.rollout_log_probs, "advantage": advantages[id(sample)] * share, "weight": weight}
            columns |= {} if version is None or not sample.weight_versions else {"version": _versions(sample)}
            result.append(
                TrainSample(tokens=sample.tokens, loss_mask=sample.loss_mask, columns=columns, rollout_id=rollout_id, order=order)
            )
    return result


def _without_gradient_left_out(config: AlgorithmConfig, samples: list[TrainSample]) -> list[TrainSample]:
    """Leaves out samples whose gradient is exactly zero, because their advantage is zero and the loss has no other term.

    Weights are already fixed, so the gradient does not change. At least one sample stays, so that the optimizer takes its step.
    """
    if config.kl_coefficient or config.entropy_coefficient or config.whitening or config.loss is not None:
        return samples
    return [sample for sample in samples if sample.columns["advantage"] != 0.0] or samples[:1]


def _versions(sample: Sample) -> Any:
    """Weight versions of its response tokens: one number where they are the same, as they usually are."""
    versions = np.asarray(sample.weight_versions)
    return int(versions[0]) if (versions == versions[0]).all() else sample.weight_versions
