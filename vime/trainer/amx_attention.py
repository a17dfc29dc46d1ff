"""Causal attention in bfloat16 on processors with AMX, where PyTorch's kernel has a slow backward pass for short sequences.

The kernel works on blocks of 32 queries below 192 tokens, of 64 below 768, and of 256 beyond; products of small blocks cost more
in bfloat16 than in float32. So short sequences go through the kernel in bfloat16 forward and in float32 backward.

Shape suffixes: B batch, H heads (G key-value groups), S sequence, D channels of a head.
"""

from typing import Any

import torch

NARROW_HEAD = 32
"""Largest number of channels for which blocks of 64 queries are small."""


def suits(length: int, num_channels: int) -> bool:
    """Whether `attend` is faster than PyTorch's kernel alone for sequences of this length and heads of this width."""
    return length < (768 if num_channels <= NARROW_HEAD else 192)


def attend(query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Returns [B, H, S, D]; without a `scale`, scores are divided by the root of D."""
    return _WideBackward.apply(query_BHSD, key_BGSD, value_BGSD, scale)


def whole_heads(x_BGSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeats keys or values for each query head, for kernels that have no grouped queries."""
    return x_BGSD.repeat_interleave(num_heads // x_BGSD.shape[1], dim=1)


class _WideBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        key, value = (whole_heads(x, query_BHSD.shape[1]) for x in (key_BGSD, value_BGSD))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, logsumexp = attend(query_BHSD, key, value, 0.0, True, scale=scale)
        ctx.save_for_backward(query_BHSD, key_BGSD, value_BGSD, output, logsumexp)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        *narrow, logsumexp = ctx.saved_tensors
        query, key, value, output = (x.float() for x in narrow)
        num_heads, num_groups = query.shape[1], key.shape[1]
        whole = [whole_heads(x, num_heads) for x in (key, value)]
        attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = attend_backward(gradients[0].float(), query, *whole, output, logsumexp, 0.0, True, scale=ctx.scale)
        of_key, of_value = (x.unflatten(1, (num_groups, -1)).sum(2) for x in found[1:])
        return found[0].to(narrow[0].dtype), of_key.to(narrow[0].dtype), of_value.to(narrow[0].dtype), None
