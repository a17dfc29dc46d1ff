"""Causal attention in bfloat16 on the CPU: by our own kernel (`blocks.py`), or around the weak places of PyTorch's.

PyTorch's kernel works on blocks of 32 queries below 192 tokens, of 64 below 768, and of 256 beyond; products of small blocks cost
more in bfloat16 than in float32. So with AMX short sequences go through it in bfloat16 forward and in float32 backward, and
without AMX in float32 both ways.

Shape suffixes: T tokens, B batch, H heads (G key-value groups), S sequence, D channels of a head.
"""

from typing import Any

import torch
import torch.nn.functional as F

from vime.trainer.attention import whole_heads
from vime.trainer.cpu import blocks
from vime.trainer.packed_sequences import PackedSequences

NARROW_HEAD = 32
"""Largest number of channels for which blocks of 64 queries are small."""
WIDE_BELOW = 768
"""Number of tokens below which PyTorch's kernel without AMX is slower in bfloat16 than in float32: 2 times at 170."""


def attend_packed(
    query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, packed: PackedSequences, scale: float | None
) -> torch.Tensor | None:
    """Rotary embedding and attention of packed sequences by our own kernel, from their places in the row, [T, H, D]."""
    if not blocks.suits_attention(query_THD, key_TGD, packed):
        return None
    return _BlockAttention.apply(query_THD, key_TGD, value_TGD, packed, query_THD.shape[2] ** -0.5 if scale is None else scale)


def attend(
    query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, sees: torch.Tensor | None, scale: float | None
) -> torch.Tensor | None:
    """Attention of a batch under a causal mask, or under `sees` if that is given, [B, H, S, D]; None where PyTorch's own is best.

    Without a `scale`, scores are divided by the root of D.
    """
    length, channels = query_BHSD.shape[2:]
    if query_BHSD.dtype is not torch.bfloat16:
        return None
    if blocks.has_amx() and sees is None and is_short(length, channels):
        return _WideBackward.apply(query_BHSD, key_BGSD, value_BGSD, scale)
    if blocks.has_amx() or length >= WIDE_BELOW:
        return None
    query, key, value = (x.float() for x in (query_BHSD, key_BGSD, value_BGSD))
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=sees, is_causal=sees is None, scale=scale, enable_gqa=True
    )
    return output.to(query_BHSD.dtype)


def is_short(length: int, num_channels: int) -> bool:
    """True if sequences of this length and heads of this width are faster with a backward pass in float32, with AMX."""
    return length < (768 if num_channels <= NARROW_HEAD else 192)


class _BlockAttention(torch.autograd.Function):
    """`attend_packed` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        query_THD: torch.Tensor,
        key_TGD: torch.Tensor,
        value_TGD: torch.Tensor,
        packed: PackedSequences,
        scale: float,
    ) -> torch.Tensor:
        output_THD, log_total_TH = blocks.attention(query_THD, key_TGD, value_TGD, packed, scale)
        ctx.save_for_backward(query_THD, key_TGD, value_TGD, output_THD, log_total_TH)
        ctx.packed, ctx.scale = packed, scale
        return output_THD

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query_THD, key_TGD, value_TGD, output_THD, log_total_TH = ctx.saved_tensors
        known = (query_THD, key_TGD, value_TGD, output_THD, log_total_TH)
        return *blocks.attention_backward(gradients[0], *known, ctx.packed, ctx.scale), None, None


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
