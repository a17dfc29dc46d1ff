"""Keeps the memory of freed tensors in the process on the CPU, in large pages, for the tensors of the next layer and step.

By default glibc returns large freed blocks to the kernel. A training step allocates the same blocks again and again, and each
time the kernel would clear every page at its first touch. And a tensor would have thousands of pages of 4 KiB, and the processor
looks up their addresses again at each access; with 2 MiB there are few pages.
"""

import ctypes
import mmap
from typing import Any

from vime.machine import memory_bytes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` (`malloc.h`)."""
NEVER = -1
LARGEST_KEPT_BYTES = 1 << 30
"""Larger blocks still come from the kernel and return to it."""
SHARE = 4
"""The largest part of our memory that lies in large pages: one in four."""


def keep() -> bool:
    """Keeps memory that is freed from now on, for the whole process; False where the C library has no `mallopt` or refuses."""
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None or not (mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES) and mallopt(TRIM_THRESHOLD, NEVER)):
        return False
    if not _kept:
        _ask_for_large_pages(library)
        _kept.append(True)
    return True


_kept: list[bool] = []


def _ask_for_large_pages(library: Any) -> None:
    """Grows the heap by addresses without memory, tells the kernel to back them by large pages, and gives them to `malloc`."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size, blocks = LARGEST_KEPT_BYTES - mmap.PAGESIZE, []
    for _ in range(memory_bytes() // SHARE // size):
        block = library.malloc(size)
        if not block:
            break
        blocks.append(block)
        start = block // mmap.PAGESIZE * mmap.PAGESIZE
        library.madvise(start, block + size - start, advice)
    for block in blocks:
        library.free(block)
