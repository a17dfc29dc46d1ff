"""RMSNorm (arXiv 1910.07467) for Megatron's local layer spec, with few passes over memory.

y = x / rms(x) * weight, with rms(x)² = mean(x²) + eps, in float32. PyTorch has kernels for it on CUDA; on the CPU its own is put
together from single operations, forward and backward, and Megatron's wrapper of it refuses sequence parallelism. On processors
with AVX-512 we have kernels (`kernels/rows.py`). Otherwise vLLM has one on the CPU, and the gradient is taken by PyTorch's
LayerNorm, which has one for that: with a mean of 0 it differs from RMSNorm's by a term that is constant in a row.

Shape suffixes: R rows (tokens, or tokens times heads), C channels.
"""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from vime.trainer import vllm_kernels
from vime.trainer.kernels import rows


class RMSNorm(torch.nn.Module):
    """Normalizes the last dimension; any leading shape."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if rows.suits(x, self.weight):
            return _RowsRMSNorm.apply(x, self.weight, self.eps)
        return (_FusedRMSNorm if x.is_cuda else _CpuRMSNorm).apply(x, self.weight, self.eps)


class _RowsRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
        x_THC = x.flatten(0, -3) if x.dim() > 2 else x.unsqueeze(1)  # keys are a part of a product, and stay there
        x_THC = x_THC if x_THC.stride(2) == 1 else x_THC.contiguous()
        result_THC, inverse_TH = rows.rms_norm(x_THC, weight_C, eps)
        ctx.save_for_backward(x_THC, inverse_TH, weight_C)
        return result_THC.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x_THC, inverse_TH, weight_C = ctx.saved_tensors
        found_THC, of_weight_C = rows.rms_norm_backward(gradients[0], x_THC, weight_C, inverse_TH)
        return found_THC.view(gradients[0].shape), of_weight_C, None


class _CpuRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
        x_RC = x.reshape(-1, x.shape[-1]).contiguous()
        square_R1 = torch.linalg.vector_norm(x_RC, dim=1, keepdim=True, dtype=torch.float32).square_()
        inverse_R1 = square_R1.div_(x_RC.shape[1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_RC, inverse_R1, weight_C)
        result_RC = vllm_kernels.rms_norm(x_RC, weight_C, eps)
        if result_RC is None:
            result_RC = (x_RC.float() * inverse_R1).to(x.dtype).mul_(weight_C)
        return result_RC.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x_RC, inverse_R1, weight_C = ctx.saved_tensors
        gradient_RC = gradients[0].reshape(x_RC.shape)
        statistics = torch.zeros_like(inverse_R1), inverse_R1
        found_RC, of_weight_C, _ = torch.ops.aten.native_layer_norm_backward(
            gradient_RC, x_RC, weight_C.shape, *statistics, weight_C.float(), None, (True, True, False)
        )
        mean_R1 = (gradient_RC @ weight_C.unsqueeze(1)).float().div_(x_RC.shape[1])
        found_RC.add_(mean_R1.mul_(inverse_R1).to(found_RC.dtype))  # LayerNorm takes it off, RMSNorm does not
        return found_RC.view(gradients[0].shape), of_weight_C.to(weight_C.dtype), None


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
