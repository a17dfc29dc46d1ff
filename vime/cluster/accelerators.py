"""The GPUs of this machine, the build of vime in this environment, and the driver: found without a library of CUDA's."""

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DEVICES = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/version")
OLDEST_DRIVER = 580
"""The first branch of NVIDIA's driver that runs programs of CUDA 13, for which PyTorch's build of PyPI is compiled."""
ENGLISH = {0: "no", 1: "one"}
CPU_BUILD, GPU_BUILD = "cpu", "gpu"
"""The values of `VIME_SETUP`."""


def num_gpus() -> int:
    """Number of NVIDIA devices that programs of this process may use (`CUDA_VISIBLE_DEVICES`)."""
    devices = len(list(DEVICES.glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return devices if visible is None else min(devices, len([gpu for gpu in visible.split(",") if gpu.strip()]))


def installed_build() -> str:
    """`gpu` where vLLM's wheel for CUDA is installed, otherwise `cpu`."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return CPU_BUILD
    return GPU_BUILD


def driver_version() -> str | None:
    """The version of NVIDIA's driver, such as `580.82.07`; None if no driver is loaded, or if none can be asked for it."""
    if DRIVER.is_file():
        found = re.search(r"\b(\d{3,}(?:\.\d+)+)\b", DRIVER.read_text(errors="replace"))
        return found[1] if found else None
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        printed = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return printed.split()[0] if printed.split() else None


def why_no_device(build: str) -> str | None:
    """The reason why PyTorch finds no GPU in this environment, and the remedy; None where build and driver fit."""
    if build == CPU_BUILD:
        return "the CPU build of vime is installed here: VIME_SETUP=gpu make setup"
    driver = driver_version()
    if driver is None:
        return f"no NVIDIA driver answers here: install {OLDEST_DRIVER} or newer"
    if int(driver.split(".")[0]) < OLDEST_DRIVER:
        return f"NVIDIA's driver is {driver} here, but CUDA 13 needs {OLDEST_DRIVER} or newer: update it"
    return None


def this_machine(aspect: str) -> Any:
    """An aspect of the cluster that fits this machine (`conf/cluster/auto.yaml`): `cluster`, `num_gpus` or `description`.

    Example of a description: `one_node (this machine has 8 GPUs)`.
    """
    found, build = num_gpus(), installed_build()
    count = found if build == GPU_BUILD else 0
    cluster = "laptop" if count == 0 else "one_gpu" if count == 1 else "one_node"
    if found and not count:
        reason = f"the CPU build is installed, so {found} GPUs stay unused: VIME_SETUP=gpu make setup"
    else:
        reason = f"this machine has {ENGLISH.get(count, count)} GPU{'s' if count > 1 else ''}"
    return {"cluster": cluster, "num_gpus": count, "description": f"{cluster} ({reason})"}[aspect]
