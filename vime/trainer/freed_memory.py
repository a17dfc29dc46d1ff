"""On the CPU, memory of freed tensors stays with the process, for the tensors of the next layer and step.

By default glibc returns large freed blocks to the kernel. A training step allocates the same blocks again and again, and each
time the kernel would clear every page at its first touch.
"""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` (`malloc.h`)."""
NEVER = -1
LARGEST_KEPT_BYTES = 1 << 30
"""Larger blocks still come from the kernel and return to it."""


def keep() -> bool:
    """Keeps what is freed from now on, for the whole process; False where the C library has no `mallopt` or refuses."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES)) and bool(mallopt(TRIM_THRESHOLD, NEVER))
