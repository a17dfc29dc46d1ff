"""Gradients of weights in bfloat16 on the CPU, added up in Megatron's float32 buffers as they are computed.

Megatron has a CUDA extension for that. `install` puts our kernel in its place where the processor multiplies bfloat16; otherwise
PyTorch multiplies into a bfloat16 matrix, which is added to the buffer afterwards: one rounding and three passes over
memory more.

Shape suffixes: T tokens, O outputs of a linear layer, I inputs.
"""

import torch

from vime.trainer.kernels import blocks


def install() -> bool:
    """Megatron's `gradient_accumulation_fusion` works with our kernel from now on; False on CUDA and where there is no kernel."""
    if torch.cuda.is_available() or blocks.library() is None:
        return False
    from megatron.core.tensor_parallel import layers

    layers.fused_weight_gradient_mlp_cuda = _Extension  # type: ignore[attr-defined]
    layers._grad_accum_fusion_available = True
    return True


class _Extension:
    """What Megatron calls of its extension."""

    @staticmethod
    def wgrad_gemm_accum_fp32(x_TI: torch.Tensor, gradient_TO: torch.Tensor, sum_OI: torch.Tensor) -> None:
        """Adds the gradient of a weight, `gradient_TO` transposed times `x_TI`, to `sum_OI`."""
        if blocks.suits_weight_gradient(x_TI, gradient_TO, sum_OI):
            blocks.add_weight_gradient(gradient_TO, x_TI, sum_OI)
        else:
            sum_OI.add_(gradient_TO.t() @ x_TI)
