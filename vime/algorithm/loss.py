"""Losses per token: pure functions on flat tensors over the response tokens of a micro-batch, in any precision.

A loss returns `(token_loss, metrics)`. The trainer sums `weight * mask * token_loss`; all averages are in the weights.
Metrics are sums over the trained tokens, which the trainer adds up over micro-batches and ranks and divides by the number of
tokens; a metric whose name ends in `_max` is a maximum instead. A user's own `algorithm.loss` follows the same rules.

Shape suffix: N response tokens.
"""

import math

import torch

from vime.algorithm.sequence import sequence_mean
from vime.config import PROBABILITY_MASKS, AlgorithmConfig, RatioLevel, Surrogate

Metrics = dict[str, torch.Tensor]

LOG_RATIO_LIMIT = 20.0
"""Bound of the log ratio of a token or sequence, beyond which its loss is constant: exp() of a larger one may overflow."""
LEAST_TAIL = 1e-6
"""Least probability of the tokens that are not recorded (arXiv 2609.20807)."""
LEAST_REST = 1e-8
"""Least probability of all other tokens together in a KL divergence: a smaller one is a rounding error of float32."""


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
    influence, not even NaN. The importance ratio is per token or per sequence; `Surrogate` lists its uses.
    """
    keep_N = mask > 0
    logprobs_N, old_logprobs_N = torch.where(keep_N, logprobs, 0.0), torch.where(keep_N, old_logprobs, 0.0)
    log_ratio_N = logprobs_N - old_logprobs_N
    if config.ratio is RatioLevel.sequence:
        log_ratio_N = _sequence_log_ratio(log_ratio_N, keep_N, sequences)
    ratio_N = torch.exp(log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    if config.surrogate is Surrogate.cispo:
        loss_N, metrics = _cispo(config, ratio_N, logprobs_N, advantages)
    elif config.surrogate is Surrogate.masked:
        loss_N, metrics = _masked_by_ratio(config, ratio_N, advantages)
    elif config.surrogate is Surrogate.sapo:
        loss_N, metrics = _sapo(config, ratio_N, advantages, keep_N)
    elif config.surrogate is Surrogate.gmpo:
        loss_N, metrics = _gmpo(config, log_ratio_N, advantages, keep_N, sequences)
    elif config.surrogate in PROBABILITY_MASKS:
        loss_N, metrics = _masked(config, ratio_N, logprobs_N, old_logprobs_N, advantages)
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


def _masked_by_ratio(config: AlgorithmConfig, ratio_N: torch.Tensor, advantages_N: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
    """-r A where 1 - clip_low ≤ r ≤ 1 + clip_high, otherwise 0, whatever the sign of A (SAO, arXiv 2607.07508, section 3.1)."""
    beyond_N = (ratio_N < 1 - config.clip_low) | (ratio_N > 1 + config.clip_high)
    return torch.where(beyond_N, 0.0, -ratio_N * advantages_N), {"train/clip_fraction": beyond_N.sum()}


def _cispo(
    config: AlgorithmConfig, ratio_N: torch.Tensor, logprobs_N: torch.Tensor, advantages_N: torch.Tensor
) -> tuple[torch.Tensor, Metrics]:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log policy: no token loses its gradient (arXiv 2506.13585, eq. 4 and 5)."""
    weight_N = ratio_N.detach().clamp(1 - config.clip_low, 1 + config.clip_high)
    return -weight_N * advantages_N * logprobs_N, {"train/clip_fraction": (weight_N != ratio_N.detach()).sum()}


def score_centering(
    config: AlgorithmConfig,
    top_NK: torch.Tensor,
    sampler_NK: torch.Tensor,
    is_known_NK: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    has_rest: bool = True,
) -> tuple[torch.Tensor, Metrics]:
    """A sum over H of sg(m - alpha p) log p: what `_cispo` lacks for its mean under the sampler to be 0 (arXiv 2609.20807).

    H are the sampler's K likeliest tokens, p and q their probabilities in trainer and sampler, m = clip(p, low q, high q) those
    of the sampler times the clipped weight. All other tokens count as if the sampler gave them rho p, with rho = (1 - sum of q) /
    (1 - sum of p): alpha = clip(1, low rho, high rho). With bounds of 1 there are no importance weights, m = q; without bounds
    the term is 0. `is_known_NK` is False in places without a token. Without `has_rest` the sampler has kept no other tokens.
    """
    with torch.no_grad():
        p_NK, q_NK = (torch.where(is_known_NK, each_NK.exp(), 0.0) for each_NK in (top_NK, sampler_NK))
        low, high = 1 - config.clip_low, 1 + config.clip_high
        recorded_N = q_NK.sum(1)
        weight_NK = p_NK.maximum(low * q_NK).minimum(high * q_NK)
        if has_rest:
            rho_N = (1 - recorded_N).clamp(min=0.0) / (1 - p_NK.sum(1)).clamp(min=LEAST_TAIL)
            alpha_N = rho_N.new_ones(()).maximum(low * rho_N).minimum(high * rho_N)
            weight_NK = weight_NK - alpha_N.unsqueeze(1) * p_NK
    centered_N = (weight_NK * torch.where(is_known_NK, top_NK, 0.0)).sum(1)
    return advantages_N * centered_N, {"train/recorded_mass_mean": recorded_N.sum()}


def _sapo(
    config: AlgorithmConfig, ratio_N: torch.Tensor, advantages_N: torch.Tensor, keep_N: torch.Tensor
) -> tuple[torch.Tensor, Metrics]:
    """-4 / tau · sigmoid(tau (r - 1)) A, with a tau for each sign of the advantage (SAPO, arXiv 2511.20347, equations 5 and 6).

    The gradient is that of -r A times 4 s (1 - s), where s is the sigmoid: 1 at r = 1, and less the further r is from it.
    """
    tau_N = torch.full_like(advantages_N, config.tau_negative).masked_fill(advantages_N > 0, config.tau_positive)
    gate_N = torch.sigmoid(tau_N * (ratio_N - 1))
    weight_N = torch.where(keep_N, 4 * gate_N * (1 - gate_N), 0.0).detach()
    return -4 / tau_N * gate_N * advantages_N, {"train/gate_weight_mean": weight_N.sum()}


def _gmpo(
    config: AlgorithmConfig,
    log_ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    keep_N: torch.Tensor,
    sequences_N: torch.Tensor,
) -> tuple[torch.Tensor, Metrics]:
    """-s A with the geometric mean s of a sequence's ratios, each clipped by the sign of its advantage (GMPO, arXiv 2507.20673).

    The value is at each token, with the gradient of the token: if advantage and weight are equal over the sequence, the sum has
    the gradient of -s A.
    """
    low = math.log(1 - config.clip_low) if config.clip_low < 1 else -math.inf
    high = math.log1p(config.clip_high)
    beyond_N = ((advantages_N > 0) & (log_ratio_N > high)) | ((advantages_N < 0) & (log_ratio_N < low))
    clipped_N = torch.where(beyond_N, log_ratio_N.clamp(low, high), log_ratio_N)
    log_mean_N = _sequence_log_ratio(clipped_N, keep_N, sequences_N)
    mean_N = torch.exp(log_mean_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return -mean_N * advantages_N, {"train/clip_fraction": beyond_N.sum()}


def _masked(
    config: AlgorithmConfig,
    ratio_N: torch.Tensor,
    logprobs_N: torch.Tensor,
    old_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
) -> tuple[torch.Tensor, Metrics]:
    """-r A, or 0 where the probability p of a token is too far from the sampler's, q.

    IPO (https://docs.primeintellect.ai/prime-rl/ipo): |p - q| > `max_divergence`. DPPO (arXiv 2602.04879, equations 11 and 12)
    keeps what moves back: it masks only p > q with A > 0 and p < q with A < 0, by the total variation |p - q| (equation 13) or
    the KL divergence (equation 14) of the two distributions over the token and all others.
    """
    with torch.no_grad():
        difference_N = logprobs_N.exp() - old_logprobs_N.exp()
        by_kl = config.surrogate is Surrogate.dppo_kl
        divergence_N = _binary_kl(old_logprobs_N, logprobs_N) if by_kl else difference_N.abs()
        masked_N = divergence_N > config.max_divergence
        if config.surrogate is not Surrogate.ipo:
            masked_N &= difference_N * advantages_N > 0
    return torch.where(masked_N, 0.0, -ratio_N * advantages_N), {"train/clip_fraction": masked_N.sum()}


def _binary_kl(old_logprobs_N: torch.Tensor, logprobs_N: torch.Tensor) -> torch.Tensor:
    """q log(q / p) + (1 - q) log((1 - q) / (1 - p)) for the sampler's probability q and the trainer's p."""
    old_rest_N, rest_N = (-torch.expm1(each_N).clamp(max=-LEAST_REST) for each_N in (old_logprobs_N, logprobs_N))
    return old_logprobs_N.exp() * (old_logprobs_N - logprobs_N) + old_rest_N * torch.log(old_rest_N / rest_N)


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
