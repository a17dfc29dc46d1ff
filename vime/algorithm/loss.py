"""Losses per token: pure functions on flat float32 tensors over the response tokens of a micro-batch.

A loss returns `(token_loss, metrics)`. The trainer sums `token_weight * mask * token_loss`; all averaging is in the weights.
Metrics are sums over the masked tokens, which the trainer adds over micro-batches and ranks and divides by the number of
tokens; a name that ends in `_max` is a maximum instead. A user's own `algorithm.loss` follows the same rules.

Shape suffix: N response tokens.
"""

import torch

from vime.config import AlgorithmConfig

Metrics = dict[str, torch.Tensor]

LOG_RATIO_LIMIT = 20.0
"""exp() of more overflows soon; such a token is clipped anyway."""


def policy_loss(
    config: AlgorithmConfig,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, Metrics]:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7), with the two bounds of clip-higher (arXiv 2503.14476).

    loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprobs - old_logprobs). All tensors have shape
    [N], float32; what stands where `mask` is 0 has no influence, not even NaN. Returns the loss of every token, shape [N],
    0 where masked.
    """
    keep_N = mask > 0
    log_ratio_N = torch.where(keep_N, logprobs - old_logprobs, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_N = torch.exp(log_ratio_N)
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    unclipped_loss_N, clipped_loss_N = -ratio_N * advantages, -clipped_N * advantages
    loss_N = torch.where(keep_N, torch.maximum(unclipped_loss_N, clipped_loss_N), 0.0)
    with torch.no_grad():
        is_clipped_N = keep_N & (clipped_loss_N > unclipped_loss_N)
        metrics = {"train/clip_fraction": is_clipped_N.sum(), "train/ratio_max": masked_max(ratio_N, mask)}
    return loss_N, metrics


def sft_loss(logprobs: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
    """Negative log-likelihood of every token, shape [N], 0 where masked."""
    return torch.where(mask > 0, -logprobs, 0.0), {}


def entropy_of_logits(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the distribution over the last dimension, by its definition -sum p log p.

    The trainer computes the same in chunks and over vocabulary shards (`vime.trainer.logprob`); this is its reference.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def masked_max(values_N: torch.Tensor, mask_N: torch.Tensor) -> torch.Tensor:
    """Largest value where the mask is set, 0 if nowhere."""
    kept_N = values_N[mask_N > 0]
    return kept_N.max() if kept_N.numel() else values_N.new_zeros(())
