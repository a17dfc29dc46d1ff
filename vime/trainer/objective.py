"""The loss of a micro-batch: policy or supervised loss, KL to the reference, entropy, and the metrics of all three.

Shape suffix: N trained tokens of the micro-batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vime.algorithm.correction import correction_weights
from vime.algorithm.kl import kl_estimate, unbiased
from vime.algorithm.loss import Metrics, masked_max, policy_loss, sft_loss
from vime.config import AlgorithmConfig, AlgorithmName, CorrectionMode, KLPlace, OldLogprobs
from vime.trainer.micro_batch import MicroBatch

LossFunction = Callable[..., tuple[torch.Tensor, Metrics]]


@dataclass(kw_only=True, slots=True)
class KnownLogprobs:
    """Logprobs of a micro-batch that were computed before the update; None where they are not needed."""

    old_N: torch.Tensor | None = None
    """The trainer's logprobs before the batch; None on its first update, when they equal the current ones."""
    reference_N: torch.Tensor | None = None


def micro_batch_loss(
    config: AlgorithmConfig,
    batch: MicroBatch,
    logprobs_N: torch.Tensor,
    entropy_N: torch.Tensor,
    *,
    known: KnownLogprobs,
    loss_function: LossFunction = policy_loss,
) -> tuple[torch.Tensor, Metrics]:
    """The scalar loss, summed with the samples' weights, and metrics as sums over tokens (`_max`: maxima)."""
    mask_N = torch.ones_like(logprobs_N)
    metrics: Metrics = {"train/entropy": entropy_N.detach().sum()}
    old_N = old_logprobs(config, batch, known, current_N=logprobs_N.detach())
    if config.name is AlgorithmName.sft:
        token_loss_N, extra = sft_loss(logprobs_N, mask_N)
    else:
        token_loss_N, extra = loss_function(config, logprobs_N, old_N, batch.columns["advantage"], mask_N, batch.sequence_N)
        if config.correction.mode is not CorrectionMode.none or config.correction.veto:
            engine_N = batch.columns["logprob"]
            factor_N, more = correction_weights(config.correction, old_N, engine_N, mask_N, batch.sequence_N)
            token_loss_N, extra = token_loss_N * factor_N, extra | more
        difference_N = (logprobs_N.detach() - batch.columns["logprob"]).abs()
        current_N = (batch.staleness_N == 0).to(mask_N.dtype)  # older tokens differ by the policy's movement as well
        metrics["train/num_current_tokens"] = current_N.sum()
        metrics["train/logprob_difference_mean"] = (difference_N * current_N).sum()
        metrics["train/logprob_difference_max"] = masked_max(difference_N, current_N)
    metrics |= {name: torch.as_tensor(value).detach() for name, value in extra.items()}
    metrics["train/policy_loss"] = (batch.columns["weight"] * token_loss_N.detach()).sum()
    if known.reference_N is not None:
        kl_N = kl_estimate(config.kl_estimator, logprobs_N, known.reference_N)
        metrics["train/kl"] = kl_N.detach().sum()
        if config.kl_place is KLPlace.loss:
            if config.kl_unbiased:
                kl_N = unbiased(config.kl_estimator, logprobs_N, known.reference_N, old_N)
            token_loss_N = token_loss_N + config.kl_coefficient * kl_N
    if config.entropy_coefficient:
        token_loss_N = token_loss_N - config.entropy_coefficient * entropy_N
    loss = (batch.columns["weight"] * token_loss_N).sum()
    metrics["train/loss"] = loss.detach()
    metrics["train/num_tokens"] = mask_N.sum()
    return loss, metrics


def old_logprobs(config: AlgorithmConfig, batch: MicroBatch, known: KnownLogprobs, *, current_N: torch.Tensor) -> torch.Tensor:
    """Logprobs in the denominator of the ratio, [N]: the engine's, or the trainer's, which may still be the current ones."""
    if config.old_logprobs is OldLogprobs.engine:
        return batch.columns["logprob"]
    return current_N if known.old_N is None else known.old_N
