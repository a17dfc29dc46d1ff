"""Estimators of KL(policy || reference) from tokens that the policy sampled.

With x = log(policy) - log(reference) of the sampled token (http://joschu.net/blog/kl-approx.html):
k1 = x is unbiased with a high variance, k2 = x²/2 is biased with a low one, k3 = exp(-x) - 1 + x is unbiased and never negative;
`low_var_kl` is k3 clamped to ±10, so that one token cannot outweigh a batch.

Shape suffix: N trained response tokens.
"""

import torch

from vime.config import KLEstimator

LOW_VAR_KL_LIMIT = 10.0
LOG_RATIO_LIMIT = 20.0
"""Bound of the log ratio: exp() of a larger one is close to infinity, so the estimate is constant beyond it."""


def unbiased(kl_N: torch.Tensor, logprobs_N: torch.Tensor, old_logprobs_N: torch.Tensor) -> torch.Tensor:
    """The estimate times policy / old policy, gradient through both (DeepSeek-V3.2, arXiv 2512.02556, equation 7).

    Its mean over tokens of the old policy is the KL for every policy, so its gradient is that of the KL. Without the ratio, the
    gradient of k1 averages to zero, that of k2 is right on-policy, and that of k3 belongs to another divergence.
    """
    return torch.exp((logprobs_N - old_logprobs_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) * kl_N


def kl_estimate(estimator: KLEstimator, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
    """KL estimate of each token, shape [N]; differentiable with respect to `logprobs_N`."""
    difference_N = logprobs_N - reference_logprobs_N
    if estimator is KLEstimator.k1:
        return difference_N
    if estimator is KLEstimator.k2:
        return difference_N.square() / 2
    k3_N = torch.exp((-difference_N).clamp(max=LOG_RATIO_LIMIT)) - 1 + difference_N
    if estimator is KLEstimator.k3:
        return k3_N
    return k3_N.clamp(min=-LOW_VAR_KL_LIMIT, max=LOW_VAR_KL_LIMIT)
