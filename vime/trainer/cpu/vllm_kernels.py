"""vLLM's kernels for norms and rotary embedding on the CPU, in a process that does not import vLLM.

They lie in a shared library beside vLLM's Python code. Each passes over memory once, where PyTorch needs four to six operations,
and servers on a CPU rotate with the same one. Where the library or a shape is missing, the caller computes with PyTorch.

Shape suffixes: R rows (tokens, or tokens times heads), C channels; T tokens, H heads, D channels of a head (K: half of them).
"""

import platform
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

NAMES = ("rms_norm", "rotary_embedding")
VECTOR = 16
"""Channels that the kernels are given a multiple of. At some other sizes the one for norms raises an error, and the one for
rotary embedding ends the process in bfloat16, at heads of 20 channels for example."""


def rms_norm(x_RC: torch.Tensor, weight_C: torch.Tensor, eps: float) -> torch.Tensor | None:
    """x / rms(x) * weight, rounded once; None where there is no kernel for it. `x_RC` is contiguous."""
    library = _kernels()
    if library is None or x_RC.shape[1] % VECTOR or not x_RC.shape[0]:
        return None
    result_RC = torch.empty_like(x_RC)
    library.rms_norm(result_RC, x_RC, weight_C, eps)
    return result_RC


def rotate(x_THD: torch.Tensor, cos_TK: torch.Tensor, sin_TK: torch.Tensor) -> torch.Tensor | None:
    """Half-split heads turned by an angle per token, rounded once; None where there is no kernel for it."""
    library = _kernels()
    if library is None or cos_TK.shape[1] % VECTOR or not x_THD.shape[0]:
        return None
    result_THD = x_THD.clone(memory_format=torch.contiguous_format)
    places_T, angles_TD = torch.arange(x_THD.shape[0]), torch.cat([cos_TK, sin_TK], dim=1)
    library.rotary_embedding(places_T, result_THD.flatten(1), None, x_THD.shape[2], angles_TD, True)
    return result_THD


@lru_cache(maxsize=1)
def _kernels() -> Any | None:
    """`torch.ops._C` with the operations `NAMES` for tensors on the CPU, or None if they are not there."""
    package = find_spec("vllm")
    if package is None or package.origin is None or torch.version.cuda is not None:  # vLLM's build for GPUs has no such kernels
        return None
    try:
        torch.ops.load_library(Path(package.origin).with_name(f"{_library()}.abi3.so"))
    except OSError:
        return None
    there = (torch._C._dispatch_has_kernel_for_dispatch_key(f"_C::{name}", "CPU") for name in NAMES)
    return torch.ops._C if all(there) else None


def _library() -> str:
    """The build for this processor that vLLM itself takes (`CpuPlatform.import_kernels`); no process may load two of them."""
    found = torch.cpu.get_capabilities()
    if platform.machine() != "x86_64" or found.get("avx512_bf16"):
        return "_C"
    return "_C_AVX512" if found.get("avx512_f") else "_C_AVX2"
