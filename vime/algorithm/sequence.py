"""Sums over the sequences of a micro-batch, spread back onto their tokens.

Sequences are numbered from 0 without gaps, and the tokens of each stand together. Shape suffix: N response tokens.
"""

import torch


def sequence_sum(values_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """At each token the sum over its sequence, shape [N]."""
    totals = torch.zeros_like(values_N).index_add(0, sequences_N, values_N)
    return totals[sequences_N]


def sequence_mean(values_N: torch.Tensor, mask_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """At each token the mean over the tokens of its sequence where the mask is set, 0 for a sequence without any."""
    keep_N = mask_N > 0
    totals_N = sequence_sum(torch.where(keep_N, values_N, 0.0), sequences_N)
    counts_N = sequence_sum(keep_N.to(values_N.dtype), sequences_N)
    return totals_N / counts_N.clamp(min=1)


def sum_to_go(values_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """At each token the sum from there to the end of its sequence, itself included, shape [N]."""
    if not values_N.numel():
        return values_N
    parts = values_N.split(torch.bincount(sequences_N).tolist())
    return torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts])
