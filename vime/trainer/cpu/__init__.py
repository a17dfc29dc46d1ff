"""Training on a CPU: Megatron without CUDA, kernels for processors, memory, and the library that multiplies.

This is the only door: `install` once per process, `begin` and `end` around the work of a rank. Without it Megatron and PyTorch
compute everything. Nothing outside imports a file of this folder.
"""

import torch

from vime.config import CpuProducts
from vime.trainer.cpu import freed_memory, products, shim
from vime.trainer.operations import OPERATIONS


def install() -> None:
    """Makes Megatron-core run on the CPU for the rest of this process, with our operations. Safe to call twice."""
    shim.install()
    from vime.trainer.cpu import bfloat16_attention, blocks, log_softmax, rms_norm, swiglu, vllm_kernels  # they import Megatron

    swiglu.install()
    OPERATIONS.rms_norm, OPERATIONS.rotate = rms_norm.rms_norm, vllm_kernels.rotate
    OPERATIONS.logprobs = log_softmax.logprobs
    OPERATIONS.attend_packed, OPERATIONS.attend = bfloat16_attention.attend_packed, bfloat16_attention.attend
    OPERATIONS.add_weight_gradient, OPERATIONS.adds_weight_gradients = blocks.add_if_suited, blocks.is_there


def begin(choice: CpuProducts) -> None:
    """Prepares this process for the work of a rank: memory that stays, and the library that multiplies matrices."""
    torch.set_flush_denormal(True)  # to such numbers shrink Adam's moments of what gets no gradient
    freed_memory.keep()
    products.install(choice)


def end() -> None:
    """Matrix products are PyTorch's again."""
    products.uninstall()
