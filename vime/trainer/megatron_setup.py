"""The preparation that Megatron-core needs before it is imported, on this device.

Packages that Megatron would use on its own are hidden from it (`HIDDEN`), but for Transformer Engine with `trainer.fp8`. A kernel
gets the name that Megatron does not define without it, and nothing is compiled where there is no compiler. Without CUDA,
`vime.trainer.cpu` is installed.
"""

import importlib.util
import logging
import os
import shutil
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

ENGINE = "transformer_engine"
HIDDEN = (ENGINE, "apex", "flashinfer")
"""Packages that Megatron imports if it finds them. Half-installed ones raise errors other than ImportError. With these packages
it would choose other layers and another Adam than those that were tested."""


def set_up(*, with_engine: bool = False) -> bool:
    """Prepares this process for Megatron-core, `with_engine` for layers of Transformer Engine; True if there is no CUDA device.

    Safe to call twice.
    """
    hidden: dict[str, Any] = sys.modules
    for package in HIDDEN:
        if package != ENGINE or not with_engine:
            hidden.setdefault(package, None)  # an import of it fails from now on, as if it were not installed
    warnings.filterwarnings("ignore", message=".*(Transformer Engine|Apex).*not installed.*")
    if torch.cuda.is_available():
        _name_missing_kernel()
        if not can_compile():
            torch._dynamo.config.disable = True
            logger.warning("no C compiler with Python's headers: Megatron's small fusions run as single operations")
        return False
    from vime.trainer import cpu

    cpu.install()
    _name_missing_kernel()
    return True


def can_compile() -> bool:
    """True if `torch.compile` can build kernels for CUDA: Triton compiles a launcher in C against Python's headers."""
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and has_headers and any(name and shutil.which(name) for name in compilers)


def _name_missing_kernel() -> None:
    """Defines the name by which Megatron's router looks for a Transformer Engine kernel, which it lacks without that package."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]
