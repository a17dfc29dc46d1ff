"""RMSNorm on the CPU, where PyTorch's own is put together from single operations, forward and backward.

On processors with AVX-512 we have kernels (`rows.py`). Otherwise vLLM has one for the forward pass, and the gradient is taken by
PyTorch's LayerNorm, which has one for that: with a mean of 0 it differs from RMSNorm's by a term that is constant in a row.

Shape suffixes: R rows (tokens, or tokens times heads), T tokens, H heads, C channels.
"""

from typing import Any

import torch

from vime.trainer.cpu import rows, vllm_kernels


def rms_norm(x: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns x / rms(x) * weight over the last dimension."""
    return (_RowsRMSNorm if rows.suits(x, weight_C) else _CpuRMSNorm).apply(x, weight_C, eps)


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
