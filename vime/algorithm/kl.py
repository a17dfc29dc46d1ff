"""Estimators of KL(policy || reference) from tokens that the policy sampled.

With x = log(policy) - log(reference) of the sampled token (http://joschu.net/blog/kl-approx.html): k1 = x is unbiased with a high
variance, k2 = x²/2 is biased with a low one, k3 = exp(-x) - 1 + x is unbiased and never negative; `low_var_kl` is k3 of at most
10, so that one token cannot outweigh a batch. Where an estimate reaches its bound it is constant as a whole: if only some of its
factors and terms were bounded, the gradient of the others could lower a logprob that is already far below the reference's.

Shape suffix: N trained response tokens.
"""

import torch

from vime.config import KLEstimator

LOW_VAR_KL_LIMIT = 10.0
LOG_RATIO_LIMIT = 20.0
"""Bound of a log ratio: exp() of a larger one is close to infinity."""


def kl_estimate(estimator: KLEstimator, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
    """KL estimate of each token, shape [N]; differentiable with respect to `logprobs_N`."""
    difference_N = logprobs_N - reference_logprobs_N
    if estimator is KLEstimator.k1:
        return difference_N
    if estimator is KLEstimator.k2:
        return difference_N.square() / 2
    difference_N = difference_N.clamp(min=-LOG_RATIO_LIMIT)
    k3_N = torch.exp(-difference_N) - 1 + difference_N
    return k3_N if estimator is KLEstimator.k3 else k3_N.clamp(max=LOW_VAR_KL_LIMIT)


def unbiased(
    estimator: KLEstimator, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, old_logprobs_N: torch.Tensor
) -> torch.Tensor:
    """`kl_estimate` times policy / old policy, gradient through both (DeepSeek-V3.2, arXiv 2512.02556, equation 7).

    Its mean over tokens of the old policy is the KL for every policy, so its gradient is that of the KL. Without the ratio, the
    gradient of k1 averages to zero, that of k2 is right on-policy, and that of k3 belongs to another divergence.
    """
    kl_N, log_ratio_N = kl_estimate(estimator, logprobs_N, reference_logprobs_N), logprobs_N - old_logprobs_N
    product_N = torch.exp(log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) * kl_N
    is_bounded_N = log_ratio_N.abs() > LOG_RATIO_LIMIT
    if estimator is KLEstimator.k3:
        is_bounded_N = is_bounded_N | (logprobs_N - reference_logprobs_N < -LOG_RATIO_LIMIT)
    if estimator is KLEstimator.low_var_kl:
        is_bounded_N = is_bounded_N | (kl_N >= LOW_VAR_KL_LIMIT)
    return torch.where(is_bounded_N, product_N.detach(), product_N)
