"""A CUDA device that is not there (`device.cpp`), compiled by g++ once and loaded before PyTorch is imported.

With it autograd works on fake tensors of device `cuda:0` in PyTorch's build without CUDA; a build with CUDA asks its own driver.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from vime.surroundings import cache_folder

SOURCE = Path(__file__).with_name("device.cpp")
COMPILE_SECONDS = 300.0
PYTORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so")


def missing() -> str | None:
    """The reason why this machine can have no such device; None if it can."""
    if "+cpu" not in version("torch"):
        return f"torch {version('torch')} is not a build without CUDA"
    return None if shutil.which("g++") else "no g++, which compiles the device"


def compiled() -> Path:
    """The shared object, compiled if it is not there yet. Raises `CalledProcessError` where the compiler refuses."""
    torch = _torch()
    key = hashlib.sha256(SOURCE.read_bytes() + version("torch").encode()).hexdigest()[:16]
    found = cache_folder("fake_device") / f"{key}.so"
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        unfinished = found.with_suffix(f".{os.getpid()}")
        command = ["g++", "-shared", "-fPIC", "-std=c++20", "-O0", f"-I{torch / 'include'}", str(SOURCE), "-o", str(unfinished)]
        subprocess.run(command, check=True, timeout=COMPILE_SECONDS)
        unfinished.replace(found)
    return found


def load() -> None:
    """Gives this process the device; PyTorch must not be imported yet."""
    assert "torch" not in sys.modules, "PyTorch asks for its devices when it is imported"
    path = compiled()
    for library in (*(_torch() / "lib" / name for name in PYTORCH_LIBRARIES), path):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
