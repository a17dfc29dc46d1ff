"""Our own kernels in bfloat16 for processors with AMX: attention, RMSNorm, SwiGLU, logprob and entropy, and the
gradients of weights (`kernels.cpp`).

Each passes over memory once, where PyTorch puts several operations together. They are compiled by g++ in about a second when
they are first wanted, and kept in `~/.cache/vime/kernels`. Where the processor, the compiler or a shape is another, callers
compute with PyTorch; `suits` says so, and nothing here may be called where it is False.

Shape suffixes: T tokens, H heads (G key-value heads), D channels of a head, C channels, F channels of a feed-forward network,
N rows of logits, V vocabulary, O outputs of a linear layer, I inputs.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vime.trainer.amx_attention import has_amx
from vime.trainer.packed_sequences import PackedSequences

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FOLDER = Path.home() / ".cache" / "vime" / "kernels"
FLAGS = "-O3 -std=c++17 -fPIC -fopenmp -fno-math-errno -mavx512f -mavx512bw -mavx512vl -mavx512bf16 -mfma -mamx-tile -mamx-bf16"
COMPILE_SECONDS = 120.0
"""Time limit of each of the compiler's two steps; a trainer goes on without kernels after it."""
BLOCK = 32
"""Attention takes heads of multiples of this many channels, products so many rows and columns."""
LONGEST = 4096
"""Tokens of a sequence; each thread needs memory for the scores of a head in bfloat16, 32 MiB for so many."""
SIGNATURES = {
    "rms_norm": "piiiiipfppn",
    "rms_norm_backward": "ppiiiiippppn",
    "swiglu": "piipn",
    "swiglu_backward": "ppiipn",
    "logprobs": "ppiifpppn",
    "logprobs_backward": "ppiifpppppn",
    "add_weight_gradient": "ppiiipn",
    "attention": "pppppp",
    "attention_backward": "pppppppppp",
}
"""Arguments by function: pointer, 64-bit integer, float, number of threads."""
TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "n": ctypes.c_int}


class _Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("token_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "groups", "channels")),
        *((name, ctypes.c_void_p) for name in ("starts", "cos", "sin")),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int),
    ]


def suits(*tensors: torch.Tensor) -> bool:
    """Whether there are kernels for these tensors."""
    narrow = all(x.dtype is torch.bfloat16 and x.device.type == "cpu" for x in tensors)
    return narrow and has_amx() and library() is not None


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


def suits_weight_gradient(x_TI: torch.Tensor, gradient_TO: torch.Tensor, sum_OI: torch.Tensor) -> bool:
    """Whether `add_weight_gradient` is to compute this product."""
    fits = all(size % BLOCK == 0 for size in sum_OI.shape)
    return fits and sum_OI.dtype is torch.float32 and sum_OI.is_contiguous() and suits(x_TI, gradient_TO)


def add_weight_gradient(gradient_TO: torch.Tensor, x_TI: torch.Tensor, sum_OI: torch.Tensor) -> None:
    """Adds `gradient_TO` transposed times `x_TI` to `sum_OI`, without rounding the product."""
    gradient_TO, x_TI = gradient_TO.contiguous(), x_TI.contiguous()
    _call("add_weight_gradient", gradient_TO, x_TI, x_TI.shape[0], *sum_OI.shape, sum_OI)


def suits_attention(query_THD: torch.Tensor, key_TGD: torch.Tensor, packed: PackedSequences) -> bool:
    """Whether `attention` is to compute these sequences: its heads, lengths, and work for all threads."""
    has_work = len(packed.lengths) * key_TGD.shape[1] >= torch.get_num_threads()
    return has_work and max(packed.lengths) <= LONGEST and query_THD.shape[2] % BLOCK == 0 and suits(query_THD, key_TGD)


def attention(
    query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, packed: PackedSequences, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of packed sequences; also the logarithm of each query's sum of exponentials, [T, H] and float32.

    If `packed` has cosines and sines, queries and keys are turned by them first.
    """
    output_THD = torch.empty(query_THD.shape, dtype=query_THD.dtype)
    log_total_TH = torch.empty(query_THD.shape[:2])
    shape = _shape(query_THD, key_TGD, packed, scale)
    _call("attention", shape, *map(_heads, (query_THD, key_TGD, value_TGD, output_THD)), log_total_TH)
    return output_THD, log_total_TH


def attention_backward(
    gradient_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor,
    value_TGD: torch.Tensor,
    output_THD: torch.Tensor,
    log_total_TH: torch.Tensor,
    packed: PackedSequences,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of queries, keys and values, given that of the output."""
    of_query_THD, of_key_TGD, of_value_TGD = (torch.empty(x.shape, dtype=x.dtype) for x in (query_THD, key_TGD, value_TGD))
    shape = _shape(query_THD, key_TGD, packed, scale)
    known = map(_heads, (query_THD, key_TGD, value_TGD, output_THD, gradient_THD))
    _call("attention_backward", shape, *known, log_total_TH, *map(_heads, (of_query_THD, of_key_TGD, of_value_TGD)))
    return of_query_THD, of_key_TGD, of_value_TGD


@lru_cache(maxsize=1)
def library() -> Any | None:
    """The compiled kernels, or None where the processor has no AMX or there is no g++ for PyTorch's OpenMP."""
    threads, compiler = _openmp(), shutil.which("g++")
    if not has_amx() or not _may_use_amx() or threads is None or compiler is None:
        return None
    try:
        kernels = ctypes.CDLL(str(_compiled(compiler, threads)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("bfloat16 without our kernels, which %s could not compile: %s", compiler, error)
        return None
    for name, signature in SIGNATURES.items():
        getattr(kernels, name).argtypes, getattr(kernels, name).restype = [TYPES[kind] for kind in signature], None
    return kernels


def _may_use_amx() -> bool:
    """Asks the kernel for AMX's registers, once per process."""
    ask = getattr(torch.cpu, "_init_amx", None)
    return ask is not None and ask()


def _compiled(compiler: str, threads: Path) -> Path:
    """The library of this source, made if it is not there yet. Processes that make it at the same time replace equal files."""
    key = hashlib.sha256(SOURCE.read_bytes() + f"{compiler} {FLAGS} {threads}".encode()).hexdigest()[:16]
    target = FOLDER / f"{key}.so"
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        parts = [FOLDER / f"{key}.{os.getpid()}.{ending}" for ending in ("o", "so")]
        for step in ([*FLAGS.split(), "-c", SOURCE, "-o", parts[0]], ["-shared", parts[0], threads, "-o", parts[1]]):
            subprocess.run([compiler, *step], check=True, capture_output=True, timeout=COMPILE_SECONDS)
        parts[0].unlink()
        parts[1].replace(target)
    return target


def _openmp() -> Path | None:
    """The OpenMP that PyTorch has loaded; with another there would be twice as many threads."""
    folder = Path(torch.__file__).parent
    return next((file for place in ("lib", "../torch.libs") for file in sorted((folder / place).glob("libgomp*.so*"))), None)


def _call(name: str, *arguments: Any) -> None:
    """Calls a kernel with pointers to tensors; all but those of attention are told the number of threads last."""
    given = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
    if SIGNATURES[name].endswith("n"):
        given.append(torch.get_num_threads())
    getattr(library(), name)(*given)


def _rows(x_THC: torch.Tensor) -> tuple[Any, ...]:
    assert x_THC.stride(2) == 1 or x_THC.shape[2] == 1, f"channels {x_THC.stride(2)} apart"
    return (x_THC, x_THC.stride(0), x_THC.stride(1), *x_THC.shape)


def _heads(x_THD: torch.Tensor) -> Any:
    data, token_stride, head_stride, *_ = _rows(x_THD)
    return ctypes.byref(_Heads(data.data_ptr(), token_stride, head_stride))


def _shape(query_THD: torch.Tensor, key_TGD: torch.Tensor, packed: PackedSequences, scale: float) -> Any:
    starts = packed.cu_seqlens_q
    assert starts is not None and starts.dtype is torch.int32, f"starts {starts}"
    angles = [0 if x is None else x.data_ptr() for x in (packed.cos_TD, packed.sin_TD)]
    sizes = (starts.numel() - 1, query_THD.shape[1], key_TGD.shape[1], query_THD.shape[2])
    return ctypes.byref(_Shape(*sizes, starts.data_ptr(), *angles, scale, torch.get_num_threads()))
