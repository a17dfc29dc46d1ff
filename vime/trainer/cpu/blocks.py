"""Attention and the gradients of weights in bfloat16, on processors that multiply it: by AMX, or by AVX-512 (`blocks.cpp`).

Where the processor, the compiler or a shape is another, callers compute with PyTorch; `suits_attention` and
`suits_weight_gradient` say so, and nothing here may be called where they are False.

Shape suffixes: T tokens, H heads (G key-value heads), D channels of a head, O outputs of a linear layer, I inputs.
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vime.trainer.cpu.compiled import AVX512, BFLOAT16, has, load, pointers
from vime.trainer.packed_sequences import PackedSequences

SOURCE = Path(__file__).with_name("blocks.cpp")
AMX = "-mamx-tile -mamx-bf16"
BLOCK = 32
"""Channels of attention heads, and rows and columns of products, must be multiples of this number."""
LONGEST = 4096
"""Maximum tokens of a sequence; each thread needs memory for the scores of a head in bfloat16, 32 MiB at this length."""
SIGNATURES = {
    "add_weight_gradient": "ppiiippn",
    "weight_gradient_bytes": "i=n",
    "attention": "ppppppp",
    "attention_bytes": "i=p",
    "attention_backward": "ppppppppppp",
    "attention_backward_bytes": "i=p",
}


class _Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("token_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "groups", "channels")),
        *((name, ctypes.c_void_p) for name in ("starts", "cos", "sin")),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int),
    ]


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """True if the processor multiplies bfloat16 matrices by itself."""
    return has("amx_bf16")


@lru_cache(maxsize=1)
def library() -> Any | None:
    """The compiled kernels, or None where there are none."""
    return compiled(with_amx=_may_use_amx())


def is_there() -> bool:
    """True if there are kernels."""
    return library() is not None


@lru_cache(maxsize=1)
def flops_per_thread() -> int:
    """FLOPs of a weight gradient per extra thread (a third of a millisecond); below that, waking one costs more than it saves."""
    return 1 << (29 if _may_use_amx() else 26)


def compiled(*, with_amx: bool) -> Any | None:
    """The kernels for processors with AMX, or for those with AVX-512's products of bfloat16; None where there are none."""
    if not has(*AVX512, "avx512_bf16"):
        return None
    return load(SOURCE, f"{BFLOAT16} {AMX}" if with_amx else BFLOAT16, SIGNATURES)


def suits_weight_gradient(x_TI: torch.Tensor, gradient_TO: torch.Tensor, sum_OI: torch.Tensor) -> bool:
    """True if `add_weight_gradient` is to compute this product."""
    fits = all(size % BLOCK == 0 for size in sum_OI.shape)
    return fits and sum_OI.dtype is torch.float32 and sum_OI.is_contiguous() and _suits(x_TI, gradient_TO)


def add_if_suited(x_TI: torch.Tensor, gradient_TO: torch.Tensor, sum_OI: torch.Tensor) -> bool:
    """Adds the gradient of a weight to its sum; False where the kernel is not to compute this product."""
    if not suits_weight_gradient(x_TI, gradient_TO, sum_OI):
        return False
    add_weight_gradient(gradient_TO, x_TI, sum_OI)
    return True


def add_weight_gradient(gradient_TO: torch.Tensor, x_TI: torch.Tensor, sum_OI: torch.Tensor) -> None:
    """Adds `gradient_TO` transposed times `x_TI` to `sum_OI`, without rounding the product."""
    gradient_TO, x_TI = gradient_TO.contiguous(), x_TI.contiguous()
    flops = 2 * x_TI.shape[0] * sum_OI.numel()
    threads = min(1 + flops // flops_per_thread(), torch.get_num_threads())
    memory = _memory("weight_gradient_bytes", threads)
    _call("add_weight_gradient", gradient_TO, x_TI, x_TI.shape[0], *sum_OI.shape, sum_OI, memory, threads)


def suits_attention(query_THD: torch.Tensor, key_TGD: torch.Tensor, packed: PackedSequences) -> bool:
    """True if `attention` is to compute these sequences: its heads, lengths, and work for all threads."""
    has_work = len(packed.lengths) * key_TGD.shape[1] >= torch.get_num_threads()
    return has_work and max(packed.lengths) <= LONGEST and query_THD.shape[2] % BLOCK == 0 and _suits(query_THD, key_TGD)


def attention(
    query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, packed: PackedSequences, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of packed sequences, and the logarithm of each query's sum of exponentials, [T, H] and float32.

    If `packed` has cosines and sines, queries and keys are turned by them first.
    """
    output_THD = torch.empty(query_THD.shape, dtype=query_THD.dtype)
    log_total_TH = torch.empty(query_THD.shape[:2])
    shape = _shape(query_THD, key_TGD, packed, scale)
    memory = _memory("attention_bytes", shape)
    _call("attention", shape, *map(_heads, (query_THD, key_TGD, value_TGD, output_THD)), log_total_TH, memory)
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
    found, memory = map(_heads, (of_query_THD, of_key_TGD, of_value_TGD)), _memory("attention_backward_bytes", shape)
    _call("attention_backward", shape, *known, log_total_TH, *found, memory)
    return of_query_THD, of_key_TGD, of_value_TGD


def _suits(*tensors: torch.Tensor) -> bool:
    return all(x.dtype is torch.bfloat16 and x.device.type == "cpu" for x in tensors) and library() is not None


@lru_cache(maxsize=1)
def _may_use_amx() -> bool:
    """True if the processor has AMX, for whose registers the operating system is asked, once per process."""
    ask = getattr(torch.cpu, "_init_amx", None)
    return has_amx() and ask is not None and ask()


def _memory(name: str, *arguments: Any) -> torch.Tensor:
    """The working memory of a kernel, as large as the function `name` says; PyTorch gives addresses that fit."""
    return torch.empty(_call(name, *arguments), dtype=torch.uint8)


def _call(name: str, *arguments: Any) -> Any:
    return getattr(library(), name)(*pointers(arguments))


def _heads(x_THD: torch.Tensor) -> Any:
    assert x_THD.stride(2) == 1 or x_THD.shape[2] == 1, f"channels {x_THD.stride(2)} apart"
    return ctypes.byref(_Heads(x_THD.data_ptr(), x_THD.stride(0), x_THD.stride(1)))


def _shape(query_THD: torch.Tensor, key_TGD: torch.Tensor, packed: PackedSequences, scale: float) -> Any:
    starts = packed.cu_seqlens_q
    assert starts is not None and starts.dtype is torch.int32, f"starts {starts}"
    angles = [0 if x is None else x.data_ptr() for x in (packed.cos_TD, packed.sin_TD)]
    sizes = (starts.numel() - 1, query_THD.shape[1], key_TGD.shape[1], query_THD.shape[2])
    return ctypes.byref(_Shape(*sizes, starts.data_ptr(), *angles, scale, torch.get_num_threads()))
