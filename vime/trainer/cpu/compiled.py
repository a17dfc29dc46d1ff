"""Compiles the kernels of this folder with g++ when they are first needed, in about a second, and loads them.

They are kept in `~/.cache/vime/kernels` (`vime.surroundings.cache_folder`). Where there is no compiler, or another OpenMP than
PyTorch's own libraries have, there are no kernels, and callers compute with PyTorch.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vime.surroundings import cache_folder

logger = logging.getLogger(__name__)

FOLDER = cache_folder("kernels")
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
FLAGS = "-O3 -std=c++17 -fPIC -fopenmp -fno-math-errno -mavx512f -mavx512bw -mavx512vl -mfma"
AVX512 = ("avx512_f", "avx512_bw", "avx512_vl")
"""Features of a processor that `FLAGS` ask for, by PyTorch's names."""
BFLOAT16 = "-mavx512bf16"
"""Compiler option for kernels that round to bfloat16, or multiply it."""
COMPILE_SECONDS = 120.0
"""Time limit of each of the compiler's two steps; a trainer goes on without kernels after it."""
TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "n": ctypes.c_int}
"""Arguments and results by letter: pointer, 64-bit integer, float, number of threads."""


def load(source: Path, flags: str, signatures: Mapping[str, str]) -> Any | None:
    """The compiled kernels of a source; None where there are none.

    A signature has the letters (`TYPES`) of a function's arguments, behind that of its result and "=" if it has one.
    """
    openmp, compiler = _openmp(), shutil.which("g++")
    if openmp is None or compiler is None:
        return None
    try:
        kernels = ctypes.CDLL(str(_compiled(source, compiler, f"{FLAGS} {flags}".split(), openmp)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("without our kernels of %s, which %s could not compile: %s", source.name, compiler, error)
        return None
    for name, signature in signatures.items():
        result, _, arguments = signature.rpartition("=")
        function = getattr(kernels, name)
        function.argtypes, function.restype = [TYPES[kind] for kind in arguments], TYPES.get(result)
    return kernels


def has(*names: str) -> bool:
    """True if the processor has all of these capabilities, by PyTorch's names: `avx512_f`, `amx_bf16`, …."""
    found = torch.cpu.get_capabilities()
    return all(found.get(name) for name in names)


def pointers(arguments: tuple[Any, ...]) -> list[Any]:
    """A kernel's arguments, with the addresses of tensors in their place."""
    return [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]


def _compiled(source: Path, compiler: str, flags: list[str], openmp: Path) -> Path:
    """The library of a source, compiled if it does not exist. Processes that compile it at the same time write equal files."""
    text = b"".join(file.read_bytes() for file in (source, *HEADERS)) + f"{compiler} {flags} {openmp}".encode()
    key = f"{source.stem}-{hashlib.sha256(text).hexdigest()[:16]}"
    target = FOLDER / f"{key}.so"
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        parts = [FOLDER / f"{key}.{os.getpid()}.{ending}" for ending in ("o", "so")]
        for step in ([*flags, "-c", source, "-o", parts[0]], ["-shared", parts[0], openmp, "-o", parts[1]]):
            subprocess.run([compiler, *step], check=True, capture_output=True, timeout=COMPILE_SECONDS)
        parts[0].unlink()
        parts[1].replace(target)
    return target


def _openmp() -> Path | None:
    """The OpenMP library that PyTorch has loaded; a second one would double the number of threads."""
    folder = Path(torch.__file__).parent
    return next((file for place in ("lib", "../torch.libs") for file in sorted((folder / place).glob("libgomp*.so*"))), None)
