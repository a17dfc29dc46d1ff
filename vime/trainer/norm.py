"""RMSNorm (arXiv 1910.07467) for Megatron's local layer spec, with few passes over memory.

y = x / rms(x) * weight, with rms(x)² = mean(x²) + eps, in float32; in some families (1 + weight) takes the place of weight.
PyTorch has kernels for it on CUDA, whose wrapper in Megatron refuses sequence parallelism; processors have ours
(`vime.trainer.cpu`).

Shape suffix: C channels.
"""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from vime.trainer.operations import OPERATIONS


class RMSNorm(torch.nn.Module):
    """Normalizes the last dimension; any leading shape."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps, self.adds_one = eps, config.layernorm_zero_centered_gamma
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.adds_one:
            return _normalized(x, self.weight, self.eps)
        if x.dtype is torch.float32:
            return _normalized(x, self.weight + 1, self.eps)
        return _OffsetRMSNorm.apply(x, self.weight, self.eps)


def _normalized(x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
    if x.is_cuda:
        return _FusedRMSNorm.apply(x, weight_C, eps)
    found = OPERATIONS.rms_norm(x, weight_C, eps)
    return torch.nn.functional.rms_norm(x, weight_C.shape, weight_C, eps) if found is None else found


class _OffsetRMSNorm(torch.autograd.Function):
    """The norm with (1 + weight) in half precision, rounded once: 1 + weight in bfloat16 would lose small weights."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
        whole = x.float()
        inverse = (whole.square().mean(-1, keepdim=True) + eps).rsqrt_()
        ctx.save_for_backward(x, inverse, weight_C)
        return whole.mul(inverse).mul_(weight_C.float() + 1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, inverse, weight_C = ctx.saved_tensors
        normalized, gradient = x.float().mul_(inverse), gradients[0].float()
        of_weight_C = (gradient * normalized).flatten(0, -2).sum(0).to(weight_C.dtype)
        gradient = gradient * (weight_C.float() + 1)
        along = (gradient * normalized).mean(-1, keepdim=True)
        return gradient.sub_(normalized.mul_(along)).mul_(inverse).to(x.dtype), of_weight_C, None


class _FusedRMSNorm(torch.autograd.Function):
    """PyTorch's kernels for CUDA: one pass over memory each way, and one for the gradient of the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        result, inverse = torch.ops.aten._fused_rms_norm(x, weight_C.shape, weight_C, eps)
        ctx.save_for_backward(x, inverse, weight_C)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, inverse, weight_C = ctx.saved_tensors
        kernel = torch.ops.aten._fused_rms_norm_backward
        found, of_weight_C = kernel(gradients[0].contiguous(), x, weight_C.shape, inverse, weight_C, [True, True])
        return found, of_weight_C, None
