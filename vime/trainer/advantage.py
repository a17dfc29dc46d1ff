"""Advantages that need the trainer: the KL penalty in the reward, and whitening over the batch of all ranks."""

from megatron.core import parallel_state

from vime.algorithm.token_advantage import mean_and_deviation, moments, whitened, with_kl_penalty
from vime.config import AlgorithmConfig, AlgorithmName, KLPlace, OldLogprobs
from vime.trainer import metrics
from vime.trainer.micro_batch import Batch, MicroBatch
from vime.trainer.objective import KnownLogprobs


def finish_advantages(config: AlgorithmConfig, batches: list[Batch], known: list[list[KnownLogprobs]]) -> dict[str, float]:
    """Replaces `advantage_N` of all micro-batches of the batch, in place; returns metrics. A collective over all ranks.

    Only the last pipeline stage, which computes the loss, has logprobs and gets the penalty.
    """
    if config.name is AlgorithmName.sft:
        return {}
    micro_batches = [micro_batch for batch in batches for micro_batch in batch.micro_batches]
    penalized = config.kl_place is KLPlace.reward and config.kl_coefficient > 0
    if penalized and parallel_state.is_pipeline_last_stage():
        for micro_batch, logprobs in zip(micro_batches, [entry for entries in known for entry in entries]):
            _penalize(config, micro_batch, logprobs)
    if not config.whitening:
        return {}
    total = metrics.reduce(moments([micro_batch.advantage_N for micro_batch in micro_batches]))
    mean, deviation = mean_and_deviation(total)
    for micro_batch in micro_batches:
        micro_batch.advantage_N = whitened(micro_batch.advantage_N, mean=mean, deviation=deviation)
    return {"train/advantage_mean": mean, "train/advantage_deviation": deviation}


def _penalize(config: AlgorithmConfig, batch: MicroBatch, known: KnownLogprobs) -> None:
    old_N = batch.rollout_logprob_N if config.old_logprobs is OldLogprobs.engine else known.old_N
    assert old_N is not None and known.reference_N is not None, "a KL penalty without logprobs"
    batch.advantage_N = with_kl_penalty(config, batch.advantage_N, old_N, known.reference_N, batch.sequence_N)
