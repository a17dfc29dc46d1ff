"""Advantages that differ from token to token: a KL penalty in the reward, and whitening over a batch.

Shape suffix: N trained tokens of a micro-batch.
"""

import torch

from vime.algorithm.kl import kl_estimate
from vime.algorithm.sequence import sum_to_go
from vime.config import AlgorithmConfig

EPSILON = 1e-8


def with_kl_penalty(
    config: AlgorithmConfig,
    advantages_N: torch.Tensor,
    old_logprobs_N: torch.Tensor,
    reference_logprobs_N: torch.Tensor,
    sequences_N: torch.Tensor,
) -> torch.Tensor:
    """A_t - coefficient * sum of KL_i over i >= t in the same sequence (REINFORCE++, arXiv 2501.03262)."""
    kl_N = kl_estimate(config.kl_estimator, old_logprobs_N, reference_logprobs_N)
    return advantages_N - config.kl_coefficient * sum_to_go(kl_N, sequences_N)


def moments(advantages: list[torch.Tensor]) -> dict[str, float]:
    """Number, sum and sum of squares of all values, which may be added up over ranks."""
    values = torch.cat(advantages).double()
    return {"number": float(values.numel()), "sum": float(values.sum()), "squares": float(values @ values)}


def mean_and_deviation(moments: dict[str, float]) -> tuple[float, float]:
    """Mean and population standard deviation from `moments`, or zeros if there are no values."""
    if not moments["number"]:
        return 0.0, 0.0
    mean = moments["sum"] / moments["number"]
    return mean, max(moments["squares"] / moments["number"] - mean * mean, 0.0) ** 0.5


def whitened(advantages_N: torch.Tensor, *, mean: float, deviation: float) -> torch.Tensor:
    """(A - mean) / deviation over the batch (REINFORCE++, arXiv 2501.03262), or zeros if all advantages are equal."""
    if deviation <= EPSILON:
        return torch.zeros_like(advantages_N)
    return (advantages_N - mean) / (deviation + EPSILON)
