"""RMSNorm, SwiGLU, logprob and entropy, in float32 and bfloat16, on processors with AVX-512 (`rows.cpp`).

Each passes over memory once, where PyTorch puts several operations together. Where the processor, the compiler or a dtype is
another, callers compute with PyTorch; `suits` says so, and nothing here may be called where it is False.

Shape suffixes: T tokens, H heads, C channels, F channels of a feed-forward network, N rows of logits, V vocabulary.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vime.trainer.cpu.compiled import AVX512, BFLOAT16, has, load, pointers

SOURCE = Path(__file__).with_name("rows.cpp")
SIGNATURES = {
    "rms_norm": "piiiiipfppn",
    "rms_norm_backward": "ppiiiiippppn",
    "swiglu": "piipn",
    "swiglu_backward": "ppiipn",
    "logprobs": "ppiifpppn",
    "logprobs_backward": "ppiifpppppn",
}


def suits(*tensors: torch.Tensor) -> bool:
    """True if there are kernels for these tensors, all of one dtype."""
    dtype = tensors[0].dtype
    return all(x.dtype is dtype and x.device.type == "cpu" for x in tensors) and library(dtype) is not None


@lru_cache(maxsize=8)
def library(dtype: torch.dtype) -> Any | None:
    """The compiled kernels for rows of a dtype, or None where there are none."""
    if dtype is torch.float32 and has(*AVX512):
        return load(SOURCE, "-DVALUE=float", SIGNATURES)
    if dtype is torch.bfloat16 and has(*AVX512, "avx512_bf16"):
        return load(SOURCE, f"-DVALUE=bf16 {BFLOAT16}", SIGNATURES)
    return None


def rms_norm(x_THC: torch.Tensor, weight_C: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) * weight, rounded once, and 1 / rms of each row in float32. Tokens and heads may have any strides."""
    result_THC = torch.empty(x_THC.shape, dtype=x_THC.dtype)
    inverse_TH = torch.empty(x_THC.shape[:2])
    weight_C = weight_C.contiguous()
    _call("rms_norm", *_rows(x_THC), weight_C, eps, result_THC, inverse_TH)
    return result_THC, inverse_TH


def rms_norm_backward(
    gradient_THC: torch.Tensor, x_THC: torch.Tensor, weight_C: torch.Tensor, inverse_TH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `x_THC` and the weight, given that of the result."""
    of_x_THC = torch.empty(x_THC.shape, dtype=x_THC.dtype)
    sums = torch.zeros(torch.get_num_threads(), weight_C.shape[0])
    gradient_THC, weight_C = gradient_THC.contiguous(), weight_C.contiguous()
    _call("rms_norm_backward", gradient_THC, *_rows(x_THC), weight_C, inverse_TH, of_x_THC, sums)
    return of_x_THC, sums.sum(0).to(weight_C.dtype)


def swiglu(x_T2F: torch.Tensor) -> torch.Tensor:
    """silu(gate) * linear of the two halves of each row, rounded once."""
    x_T2F = x_T2F.contiguous()
    result_TF = torch.empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2), dtype=x_T2F.dtype)
    _call("swiglu", x_T2F, result_TF.numel() // result_TF.shape[-1], result_TF.shape[-1], result_TF)
    return result_TF


def swiglu_backward(gradient_TF: torch.Tensor, x_T2F: torch.Tensor) -> torch.Tensor:
    """The gradient of `x_T2F`, given that of the result."""
    gradient_TF, x_T2F = gradient_TF.contiguous(), x_T2F.contiguous()
    of_x_T2F = torch.empty_like(x_T2F)
    _call("swiglu_backward", gradient_TF, x_T2F, gradient_TF.numel() // gradient_TF.shape[-1], gradient_TF.shape[-1], of_x_T2F)
    return of_x_T2F


def logprobs(
    logits_NV: torch.Tensor, target_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprob of each target, entropy, and logarithm of the sum of exponentials; [N] and float32 each."""
    logprob_N, entropy_N, log_total_N = torch.empty(3, logits_NV.shape[0]).unbind()
    _call("logprobs", logits_NV, target_N, *logits_NV.shape, temperature, logprob_N, entropy_N, log_total_N)
    return logprob_N, entropy_N, log_total_N


def logprobs_backward(
    by_logprob_N: torch.Tensor,
    by_entropy_N: torch.Tensor,
    logits_NV: torch.Tensor,
    target_N: torch.Tensor,
    entropy_N: torch.Tensor,
    log_total_N: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """The gradient of the logits, given those of logprob and entropy."""
    of_logits_NV = torch.empty_like(logits_NV)
    known = (by_logprob_N.contiguous(), by_entropy_N.contiguous(), entropy_N, log_total_N)
    _call("logprobs_backward", logits_NV, target_N, *logits_NV.shape, temperature, *known, of_logits_NV)
    return of_logits_NV


def _call(name: str, *arguments: Any) -> None:
    """Calls a kernel for the dtype of its first argument, and tells it the number of threads last."""
    getattr(library(arguments[0].dtype), name)(*pointers(arguments), torch.get_num_threads())


def _rows(x_THC: torch.Tensor) -> tuple[Any, ...]:
    assert x_THC.stride(2) == 1 or x_THC.shape[2] == 1, f"channels {x_THC.stride(2)} apart"
    return (x_THC, x_THC.stride(0), x_THC.stride(1), *x_THC.shape)
