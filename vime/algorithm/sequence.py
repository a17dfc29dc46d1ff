"""Sums over the sequences of a micro-batch, at each of their tokens.

Sequences are numbered from 0 without gaps, and the tokens of a sequence are adjacent. Shape suffix: N response tokens.
"""

import torch


def sequence_sum(values_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """The sum over a token's sequence, at each token, shape [N]."""
    totals = torch.zeros_like(values_N).index_add(0, sequences_N, values_N)
    return totals[sequences_N]


def sequence_mean(values_N: torch.Tensor, mask_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """The mean over a sequence's tokens where the mask is set, or 0 if it is set nowhere, at each token, shape [N]."""
    keep_N = mask_N > 0
    totals_N = sequence_sum(torch.where(keep_N, values_N, 0.0), sequences_N)
    counts_N = sequence_sum(keep_N.to(values_N.dtype), sequences_N)
    return totals_N / counts_N.clamp(min=1)


def sum_to_go(values_N: torch.Tensor, sequences_N: torch.Tensor) -> torch.Tensor:
    """The sum over a token and the later tokens of its sequence, at each token, shape [N]."""
    if not values_N.numel():
        return values_N
    parts = values_N.split(torch.bincount(sequences_N).tolist())
    return torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts])
