"""Importance weights that correct for the difference between the logprobs of the engine, which sampled, and the trainer.

With rho_t = exp(log trainer_old - log engine) of a token, the weight is rho_t itself (level `token`), the product over its
sequence (`sequence`), or the geometric mean over it (`geometric`). Outside low … high it is truncated (TIS,
https://fengyao.notion.site/off-policy-rl) or set to 0 (IcePop, arXiv 2510.18855, on tokens; masked importance sampling on
sequences). A veto drops a whole sequence if one of its tokens is almost impossible for the trainer.

Shape suffix: N response tokens.
"""

import torch

from vime.algorithm.loss import LOG_RATIO_LIMIT, Metrics
from vime.algorithm.sequence import sequence_mean, sequence_sum
from vime.config import CorrectionConfig, CorrectionLevel, CorrectionMode


@torch.no_grad()
def correction_weights(
    config: CorrectionConfig,
    old_logprobs_N: torch.Tensor,
    engine_logprobs_N: torch.Tensor,
    mask_N: torch.Tensor,
    sequences_N: torch.Tensor,
) -> tuple[torch.Tensor, Metrics]:
    """The factor of every token's policy loss, shape [N], 0 where masked, and metrics as sums over tokens."""
    keep_N = mask_N > 0
    log_rho_N = torch.where(keep_N, old_logprobs_N - engine_logprobs_N, 0.0)
    weight_N = keep_N.to(log_rho_N.dtype)
    metrics: Metrics = {}
    if config.mode is not CorrectionMode.none:
        rho_N = torch.exp(_at_level(config.level, log_rho_N, mask_N, sequences_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
        outside_N = keep_N & ((rho_N < config.low) | (rho_N > config.high))
        truncates = config.mode is CorrectionMode.truncate
        bounded_N = rho_N.clamp(config.low, config.high) if truncates else torch.where(outside_N, 0.0, rho_N)
        weight_N = weight_N * bounded_N
        metrics["train/correction_outside_share"] = outside_N.sum()
    if config.veto > 0:
        impossible_N = (keep_N & (torch.exp(log_rho_N) < config.veto)).to(weight_N.dtype)
        vetoed_N = keep_N & (sequence_sum(impossible_N, sequences_N) > 0)
        weight_N = torch.where(vetoed_N, 0.0, weight_N)
        metrics["train/correction_veto_share"] = vetoed_N.sum()
    metrics["train/correction_weight_mean"] = weight_N.sum()
    return weight_N, metrics


def _at_level(level: CorrectionLevel, log_rho_N: torch.Tensor, mask_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    if level is CorrectionLevel.token:
        return log_rho_N
    if level is CorrectionLevel.sequence:
        return sequence_sum(log_rho_N, sequences_N)
    return sequence_mean(log_rho_N, mask_N, sequences_N)
