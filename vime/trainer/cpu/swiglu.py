"""SwiGLU (arXiv 2002.05202) on the CPU: few passes over memory, and nothing kept but the input.

y = silu(gate) * linear, where the input holds gate and linear side by side. Megatron's fusion is meant for a compiler; without
one it computes in single operations more than its unfused version does. `install` puts this in its place. The rounding is that
of the unfused version, to the last bit; our own kernels (`rows.py`) round once.

Shape suffixes: T tokens, F channels of the feed-forward network (2F: gate and linear).
"""

from typing import Any

import torch

from vime.trainer.cpu import rows

PART = 1 << 18
"""Values of F channels that are worked through at a time, so that each pass finds the last one's results in the cache."""


def install() -> None:
    """Gives Megatron's dense layers and experts these functions for its fused SwiGLU, for the rest of this process."""
    from megatron.core.transformer import mlp
    from megatron.core.transformer.moe import experts, shared_experts

    mlp.bias_swiglu_impl = shared_experts.bias_swiglu_impl = swiglu  # type: ignore[assignment]
    mlp.weighted_bias_swiglu_impl = experts.weighted_bias_swiglu_impl = weighted_swiglu  # type: ignore[assignment]


def swiglu(x: torch.Tensor, bias: torch.Tensor | None, *_: Any) -> torch.Tensor:
    """Returns [..., F] for [..., 2F]. Linear layers here have no bias, and nothing is stored in FP8."""
    assert bias is None, "a bias of the feed-forward network"
    return _SwiGLU.apply(x)


def weighted_swiglu(x: torch.Tensor, bias: torch.Tensor | None, weights: torch.Tensor, *_: Any) -> torch.Tensor:
    """SwiGLU times a weight per token, [..., 1]; the product is rounded once to the dtype of `x`."""
    assert bias is None, "a bias of the experts"
    return _WeightedSwiGLU.apply(x, weights)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return _activated(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return _gradient(x, gradients[0])


class _WeightedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weights)
        return (_activated(x) * weights).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weights = ctx.saved_tensors
        gradient = gradients[0].to(torch.promote_types(x.dtype, weights.dtype))
        of_weights = (gradient * _activated(x)).sum(-1, keepdim=True).to(weights.dtype)
        return _gradient(x, (gradient * weights).to(x.dtype)), of_weights


def _activated(x: torch.Tensor) -> torch.Tensor:
    if rows.suits(x):
        return rows.swiglu(x)
    result = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    for x_T2F, result_TF in zip(*(_parts(tensor, result.shape[-1]) for tensor in (x, result))):
        gate_TF, linear_TF = x_T2F.chunk(2, dim=1)
        torch.ops.aten.silu.out(gate_TF, out=result_TF).mul_(linear_TF)
    return result


def _gradient(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of `x`, given that of the result."""
    if rows.suits(x):
        return rows.swiglu_backward(gradient, x)
    result = torch.empty_like(x)
    tensors = (x, gradient, result)
    for x_T2F, gradient_TF, result_T2F in zip(*(_parts(tensor, gradient.shape[-1]) for tensor in tensors)):
        gate_TF, linear_TF = x_T2F.chunk(2, dim=1)
        of_gate_TF, of_linear_TF = result_T2F.chunk(2, dim=1)
        torch.mul(gradient_TF, linear_TF, out=of_gate_TF)
        torch.ops.aten.silu_backward.grad_input(of_gate_TF, gate_TF, grad_input=of_gate_TF)
        torch.ops.aten.silu.out(gate_TF, out=of_linear_TF).mul_(gradient_TF)
    return result


def _parts(x: torch.Tensor, num_channels: int) -> tuple[torch.Tensor, ...]:
    """Some rows of [..., C] at a time as [T, C], for a feed-forward network of F channels."""
    return x.reshape(-1, x.shape[-1]).split(max(PART // num_channels, 1))
