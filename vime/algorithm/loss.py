"""Losses per token: pure functions on flat tensors over the response tokens of a micro-batch, in any precision.

A loss returns `(token_loss, metrics)`. The trainer sums `weight * mask * token_loss`; all averages are in the weights.
Metrics are sums over the trained tokens, which the trainer adds up over micro-batches and ranks and divides by the number of
tokens; a metric whose name ends in `_max` is a maximum instead. A user's own `algorithm.loss` follows the same rules.

Shape suffix: N response tokens.
"""

import torch

from vime.algorithm.sequence import sequence_mean
from vime.config import AlgorithmConfig, RatioLevel, Surrogate

Metrics = dict[str, torch.Tensor]

LOG_RATIO_LIMIT = 20.0
"""Bound of the log ratio of a token or sequence, beyond which its loss is constant: exp() of a larger one may overflow."""


def policy_loss(
    config: AlgorithmConfig,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    sequences: torch.Tensor,
) -> tuple[torch.Tensor, Metrics]:
    """The policy gradient loss of every token, shape [N], 0 where masked.

    All tensors have shape [N]; `sequences` holds the number of each token's sequence. Values where `mask` is 0 have no
    influence, not even NaN. The importance ratio is per token or per sequence, the surrogate PPO's or CISPO's.
    """
    keep_N = mask > 0
    logprobs_N = torch.where(keep_N, logprobs, 0.0)
    log_ratio_N = logprobs_N - torch.where(keep_N, old_logprobs, 0.0)
    if config.ratio is RatioLevel.sequence:
        log_ratio_N = _sequence_log_ratio(log_ratio_N, keep_N, sequences)
    ratio_N = torch.exp(log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    if config.surrogate is Surrogate.cispo:
        loss_N, metrics = _cispo(config, ratio_N, logprobs_N, advantages)
    else:
        loss_N, metrics = _clipped(config, ratio_N, advantages)
    return torch.where(keep_N, loss_N, 0.0), metrics | {"train/ratio_max": masked_max(ratio_N.detach(), mask)}


def _sequence_log_ratio(log_ratio_N: torch.Tensor, keep_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """GSPO's sequence ratio (arXiv 2507.18071, equation 7) at each token, with the gradient of the token (equation 14).

    If the advantage is equal over the sequence, the gradient is that of the sequence ratio itself.
    """
    own_N = log_ratio_N.detach()
    return sequence_mean(own_N, keep_N, sequences_N) + (log_ratio_N - own_N)


def _clipped(config: AlgorithmConfig, ratio_N: torch.Tensor, advantages_N: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A): PPO (arXiv 1707.06347, equation 7), clip-higher (2503.14476).

    Dual clip (arXiv 1912.09729) bounds it by -dual_clip A where the advantage is negative.
    """
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    unclipped_loss_N, clipped_loss_N = -ratio_N * advantages_N, -clipped_N * advantages_N
    loss_N = torch.maximum(unclipped_loss_N, clipped_loss_N)
    metrics: Metrics = {"train/clip_fraction": (clipped_loss_N > unclipped_loss_N).sum()}
    if config.dual_clip is not None:
        bound_N = -config.dual_clip * advantages_N
        beyond_N = (advantages_N < 0) & (loss_N > bound_N)
        loss_N = torch.where(beyond_N, bound_N, loss_N)
        metrics["train/dual_clip_fraction"] = beyond_N.sum()
    return loss_N, metrics


def _cispo(
    config: AlgorithmConfig, ratio_N: torch.Tensor, logprobs_N: torch.Tensor, advantages_N: torch.Tensor
) -> tuple[torch.Tensor, Metrics]:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log policy: no token loses its gradient (arXiv 2506.13585, eq. 4 and 5)."""
    weight_N = ratio_N.detach().clamp(1 - config.clip_low, 1 + config.clip_high)
    return -weight_N * advantages_N * logprobs_N, {"train/clip_fraction": (weight_N != ratio_N.detach()).sum()}


def entropy_of_logits(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the distribution over the last dimension, by the definition -sum p log p.

    The trainer computes the same in chunks and over vocabulary shards (`vime.trainer.logprob`); tests compare it with this.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def masked_max(values_N: torch.Tensor, mask_N: torch.Tensor) -> torch.Tensor:
    """The largest value where the mask is set, or 0 if it is set nowhere. The host does not wait for either."""
    kept_N = mask_N > 0
    if not values_N.numel():
        return values_N.new_zeros(())
    return torch.where(kept_N.any(), torch.where(kept_N, values_N, -torch.inf).amax(), 0.0)
