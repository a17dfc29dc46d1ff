"""Logprobs and entropies of a whole vocabulary in one pass each way, on processors with AVX-512.

Shape suffixes: N tokens, V vocabulary.
"""

from typing import Any

import torch

from vime.trainer.cpu import rows


def logprobs(logits_NV: torch.Tensor, target_N: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Logprob of each target and entropy of its distribution, both [N] and float32; None where there is no kernel."""
    return _WholeLogprobAndEntropy.apply(logits_NV, target_N, temperature) if rows.suits(logits_NV) else None


class _WholeLogprobAndEntropy(torch.autograd.Function):
    """Keeps the logits and computes their exponentials twice."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, target_N: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_NV = logits_NV.contiguous()
        logprob_N, entropy_N, log_total_N = rows.logprobs(logits_NV, target_N, temperature)
        ctx.save_for_backward(logits_NV, target_N, entropy_N, log_total_N)
        ctx.temperature = temperature
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits_NV, target_N, entropy_N, log_total_N = ctx.saved_tensors
        by_logprob_N, by_entropy_N = gradients
        known = (logits_NV, target_N, entropy_N, log_total_N)
        return rows.logprobs_backward(by_logprob_N, by_entropy_N, *known, ctx.temperature), None, None
