"""Gradients of weights in bfloat16, added up in Megatron's float32 buffers as they are computed.

Megatron has an extension for that, which is part of Apex. `install` puts `add_weight_gradient` in its place: on CUDA PyTorch's
product with float32 sums (`addmm` with `out_dtype`, cuBLAS), on the CPU our kernel where the processor multiplies bfloat16.
Elsewhere PyTorch multiplies into a bfloat16 matrix, which is added to the buffer afterwards: one rounding and three passes over
memory more.

Shape suffixes: T tokens, O outputs of a linear layer, I inputs.
"""

from typing import Any

import torch

from vime.trainer.operations import OPERATIONS


def install() -> bool:
    """Megatron's `gradient_accumulation_fusion` works with `add_weight_gradient` from now on; False on a CPU without a kernel."""
    if not torch.cuda.is_available() and not OPERATIONS.adds_weight_gradients():
        return False
    from megatron.core.tensor_parallel import layers

    layers.fused_weight_gradient_mlp_cuda = _Extension  # type: ignore[attr-defined]
    layers._grad_accum_fusion_available = True
    return True


def add_weight_gradient(x_TI: torch.Tensor, gradient_TO: torch.Tensor, sum_OI: torch.Tensor) -> None:
    """Adds the gradient of a weight, `gradient_TO` transposed times `x_TI`, to `sum_OI`, which is float32."""
    if x_TI.is_cuda and x_TI.dtype is torch.bfloat16:
        torch.addmm(sum_OI, gradient_TO.t(), x_TI, out_dtype=torch.float32, out=sum_OI)
    elif not OPERATIONS.add_weight_gradient(x_TI, gradient_TO, sum_OI):
        sum_OI.add_(gradient_TO.t() @ x_TI)


def kept_gradient(weight: Any, *, is_always: bool) -> torch.Tensor | None:
    """The tensor that autograd gets for a weight whose gradient is in Megatron's buffer already.

    It is needed because Megatron starts a reduction beside the backward pass once each weight of a bucket has a gradient. If all
    gradients of the weight in an update are added here or by Megatron's own layers (`is_always`), the tensor has no values, and
    is marked so for Megatron; else it is zeros. A head that is tied to the embedding of its stage gets its tensor from there.
    """
    if not hasattr(weight, "grad_added_to_main_grad") or getattr(weight, "zero_out_wgrad", False):
        return None
    if not is_always:
        return torch.zeros_like(weight)
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


class _Extension:
    """Replacement for Megatron's extension, with the only function of it that Megatron calls."""

    wgrad_gemm_accum_fp32 = staticmethod(add_weight_gradient)
