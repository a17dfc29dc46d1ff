"""Advantages that need the trainer: the KL penalty in the reward, and whitening over the batch of all ranks."""

import torch
from megatron.core import parallel_state

from vime.algorithm.token_advantage import mean_and_deviation, moments, whitened, with_kl_penalty
from vime.config import AlgorithmConfig, AlgorithmName, KLPlace, OldLogprobs
from vime.trainer import metrics
from vime.trainer.micro_batch import MicroBatch, MicroBatches
from vime.trainer.objective import KnownLogprobs


def finish_advantages(config: AlgorithmConfig, batches: list[MicroBatches], known: list[list[KnownLogprobs]]) -> dict[str, float]:
    """Replaces the advantages of all micro-batches of the batch, in place; returns metrics. A collective over all ranks.

    Only the last pipeline stage, which computes the loss, has logprobs and gets the penalty.
    """
    penalized = config.kl_place is KLPlace.reward and config.kl_coefficient > 0
    if config.name is AlgorithmName.sft or not (penalized or config.whitening):
        return {}
    has_logprobs = penalized and parallel_state.is_pipeline_last_stage()
    advantages = [
        [_penalized(config, *pair) if has_logprobs else pair[0].columns["advantage"] for pair in zip(batch, entries)]
        for batch, entries in zip(batches, known)
    ]
    metrics_found: dict[str, float] = {}
    if config.whitening:
        total = metrics.reduce(moments([advantage_N for parts in advantages for advantage_N in parts]))
        mean, deviation = mean_and_deviation(total)
        advantages = [[whitened(advantage_N, mean=mean, deviation=deviation) for advantage_N in parts] for parts in advantages]
        metrics_found = {"train/advantage_mean": mean, "train/advantage_deviation": deviation}
    for batch, parts in zip(batches, advantages):
        batch.set_advantages(parts)
    return metrics_found


def _penalized(config: AlgorithmConfig, batch: MicroBatch, known: KnownLogprobs) -> torch.Tensor:
    old_N = batch.columns["logprob"] if config.old_logprobs is OldLogprobs.engine else known.old_N
    assert old_N is not None and known.reference_N is not None, "a KL penalty without logprobs"
    return with_kl_penalty(config, batch.columns["advantage"], old_N, known.reference_N, batch.sequence_N)
