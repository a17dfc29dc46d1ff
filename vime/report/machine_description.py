"""Describes the machine and its speed at this moment, so that measured times can be compared."""

import os
import platform
import time
from pathlib import Path
from typing import Any

from vime.machine import memory_bytes, num_cores

MATRIX_SIZE = 1024
MEASURE_SECONDS = 0.1


def describe_machine() -> dict[str, Any]:
    """Cores, memory, load average over 1, 5 and 15 minutes, and the rate of matrix products; takes 0.1 s beside importing torch.

    Example: `{"num_cores": 2, "load_average": [1.5, 1.1, 0.9], "matmul_gflops_float32": 310.2, …}`.
    """
    import torch

    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": num_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "matmul_gflops_float32": round(matrix_product_rate(), 1),
    }


def matrix_product_rate(seconds: float = MEASURE_SECONDS, *, dtype: str = "float32") -> float:
    """Measures the rate of matrix products on this process's CPU threads, in GFLOP/s, under the present load."""
    import torch

    with torch.inference_mode():
        a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE).to(getattr(torch, dtype)) for _ in range(2))
        torch.mm(a, b)
        num_products, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or num_products == 0:
            torch.mm(a, b)
            num_products += 1
    return 2 * MATRIX_SIZE**3 * num_products / max(elapsed, 1e-9) / 1e9


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
