"""Causal attention in bfloat16 on processors with AMX, whose kernel in PyTorch has a slow backward pass for short sequences.

Forward it is PyTorch's kernel. Backward, heads of few channels go through the kernel in float32. For wider ones the gradient is
put together from products of blocks (as in arXiv 2205.14135, algorithm 4): scores and their gradients in float32, and what is
multiplied with queries, keys and output gradients in bfloat16, as on GPUs.

Shape suffixes: B batch, H heads (G key-value groups of R heads), S sequence, M the queries of a block, in all R heads, E the keys
that they see, D channels.
"""

import math
from functools import lru_cache
from typing import Any

import torch

LARGEST = 32768
"""PyTorch's kernel is the faster one if tokens of a sequence times channels of a head are more."""
LARGEST_NARROW = 16384
"""The same for heads with fewer channels than `WIDE_HEAD`."""
WIDE_HEAD = 64
BLOCK = 128
"""Queries of a block: what lies above the diagonal is left out but for half of a block."""
SCORES = 1 << 20
"""Scores that are computed at a time, over several sequences; at 4 bytes each they should stay in the cache."""


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """Whether the processor multiplies bfloat16 matrices by itself."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def suits(length: int, num_channels: int) -> bool:
    """Whether `attend` is faster than PyTorch's kernel for sequences of this length, [S], and heads of this width, [D]."""
    return length * num_channels <= (LARGEST if num_channels >= WIDE_HEAD else LARGEST_NARROW)


def attend(query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Returns [B, H, S, D]; without a `scale`, scores are divided by the root of D."""
    by_blocks = query_BHSD.shape[3] >= WIDE_HEAD
    return _Attention.apply(query_BHSD, key_BGSD, value_BGSD, scale or 1 / math.sqrt(query_BHSD.shape[3]), by_blocks)


def whole_heads(x_BGSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeats keys or values for each query head, for kernels that have no grouped queries."""
    return x_BGSD.repeat_interleave(num_heads // x_BGSD.shape[1], dim=1)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_BHSD: torch.Tensor,
        key_BGSD: torch.Tensor,
        value_BGSD: torch.Tensor,
        scale: float,
        by_blocks: bool,
    ) -> torch.Tensor:
        key, value = (whole_heads(x, query_BHSD.shape[1]) for x in (key_BGSD, value_BGSD))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, logsumexp = attend(query_BHSD, key, value, 0.0, True, scale=scale)
        ctx.save_for_backward(query_BHSD, key_BGSD, value_BGSD, output, logsumexp)
        ctx.scale, ctx.gradients = scale, _by_blocks if by_blocks else _in_float32
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.gradients(*ctx.saved_tensors, gradients[0], ctx.scale), None, None


def _in_float32(
    query_BHSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    value_BGSD: torch.Tensor,
    output_BHSD: torch.Tensor,
    logsumexp_BHS: torch.Tensor,
    gradient_BHSD: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value by PyTorch's kernel."""
    dtype, (num_heads, num_groups) = query_BHSD.dtype, (query_BHSD.shape[1], key_BGSD.shape[1])
    key, value = (whole_heads(x.float(), num_heads) for x in (key_BGSD, value_BGSD))
    query, output, gradient = (x.float() for x in (query_BHSD, output_BHSD, gradient_BHSD))
    attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = attend_backward(gradient, query, key, value, output, logsumexp_BHS, 0.0, True, scale=scale)
    of_key, of_value = (x.unflatten(1, (num_groups, -1)).sum(2) for x in found[1:])
    return found[0].to(dtype), of_key.to(dtype), of_value.to(dtype)


def _by_blocks(
    query_BHSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    value_BGSD: torch.Tensor,
    output_BHSD: torch.Tensor,
    logsumexp_BHS: torch.Tensor,
    gradient_BHSD: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value by products of blocks of queries with the keys that they see."""
    num_groups, length = key_BGSD.shape[1], key_BGSD.shape[2]
    shared_BHS = (gradient_BHSD.float() * output_BHSD.float()).sum(-1)  # of a query's scores: sum of probability times gradient
    query, gradient, logsumexp, shared = (
        x.unflatten(1, (num_groups, -1)) for x in (query_BHSD, gradient_BHSD, logsumexp_BHS, shared_BHS)
    )
    of_query, of_key, of_value = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key_BGSD, value_BGSD)
    )
    count = max(SCORES // (query_BHSD.shape[1] * min(BLOCK, length) * length), 1)
    for start in range(0, key_BGSD.shape[0], count):
        part = slice(start, start + count)
        _add_blocks(
            *(x[part] for x in (query, key_BGSD, value_BGSD, gradient, logsumexp, shared)),
            scale=scale,
            results=(of_query[part], of_key[part], of_value[part]),
        )
    return of_query.flatten(1, 2), of_key, of_value


def _add_blocks(
    query_BGRSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    value_BGSD: torch.Tensor,
    gradient_BGRSD: torch.Tensor,
    logsumexp_BGRS: torch.Tensor,
    shared_BGRS: torch.Tensor,
    *,
    scale: float,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Fills `results` with the gradients of query, key and value of some sequences; leading dimensions are worked on as one."""
    dtype, (*batch, num_heads, length, channels) = query_BGRSD.dtype, query_BGRSD.shape
    of_query, of_key, of_value = results
    key, value = (x.reshape(-1, length, channels) for x in (key_BGSD, value_BGSD))
    wide_key, wide_value = key.float().transpose(1, 2), value.float().transpose(1, 2)
    key_sum, value_sum = torch.zeros(2, *key.shape).unbind()
    above_MM = torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu_(1)
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        size = end - start
        query, gradient = (x[..., start:end, :].reshape(-1, num_heads * size, channels) for x in (query_BGRSD, gradient_BGRSD))
        logsumexp, shared = (x[..., start:end].reshape(-1, num_heads * size, 1) for x in (logsumexp_BGRS, shared_BGRS))
        probability_ME = (query.float() @ wide_key[..., :end]).mul_(scale).sub_(logsumexp).exp_()
        probability_ME.unflatten(1, (num_heads, size))[..., start:end].masked_fill_(above_MM[:size, :size], 0.0)
        of_score_ME = (gradient.float() @ wide_value[..., :end]).sub_(shared).mul_(probability_ME).to(dtype)
        value_sum[:, :end] += probability_ME.to(dtype).transpose(1, 2) @ gradient
        key_sum[:, :end] += of_score_ME.transpose(1, 2) @ query
        of_query[..., start:end, :] = (of_score_ME @ key[:, :end]).mul_(scale).view(*batch, num_heads, size, channels)
    of_key.copy_(key_sum.mul_(scale).view(of_key.shape))
    of_value.copy_(value_sum.view(of_value.shape))
