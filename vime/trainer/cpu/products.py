"""Float32 matrix products on the CPU by the faster of two libraries: MKL, PyTorch's own choice, or oneDNN.

oneDNN is the faster one on AMD processors with AVX-512: there `aten::mm` is given to it, for the whole process, forward and
backward. The rule looks at the kind of processor, never at its present speed: all ranks, and a resumed run on the same machine,
multiply alike to the last bit. `trainer.cpu_products` overrides it.
"""

import logging
import re
import warnings
from pathlib import Path

import torch

from vime.config import CpuProducts

logger = logging.getLogger(__name__)

MIN_SIZE = 16
"""Products with a smaller dimension are bound by memory and stay with PyTorch."""

_installed: list[torch.library.Library] = []


def install(choice: CpuProducts) -> bool:
    """Gives products of this process to oneDNN if `choice` or the processor asks for it, or back; True if oneDNN has them."""
    wanted = uses_onednn(choice, _processor()) and torch.backends.mkldnn.is_available() and not torch.cuda.is_available()
    if not wanted:
        uninstall()
    elif not _installed:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # replacing a kernel is what is meant here
            library.impl("mm", _multiply, "CPU")
        _installed.append(library)
        logger.info("float32 matrix products by oneDNN")
    return wanted


def uninstall() -> None:
    """Products are PyTorch's again."""
    while _installed:
        _installed.pop()._destroy()


def uses_onednn(choice: CpuProducts, processor: str) -> bool:
    """True if `choice` means oneDNN on a processor, described by vendor and flags as in `/proc/cpuinfo`."""
    if choice is not CpuProducts.auto:
        return choice is CpuProducts.onednn
    return "AuthenticAMD" in processor and re.search(r"\bavx512f\b", processor) is not None


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.float32 and min(*a.shape, b.shape[1]) >= MIN_SIZE:
        return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return torch.mm(a, b, out=a.new_empty(a.shape[0], b.shape[1]))


def _processor() -> str:
    """Vendor and flags of the first core; empty where there is no such file."""
    file = Path("/proc/cpuinfo")
    return file.read_text().partition("\n\n")[0] if file.exists() else ""
