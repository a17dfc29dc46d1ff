"""Freed memory is used again without the kernel: its pages are not touched for the first time twice. And they are large."""

import subprocess
import sys
from pathlib import Path

import pytest

COUNT_FAULTS = """
import ctypes
import resource
import sys

from vime.trainer.cpu import freed_memory

NUM_BYTES = 64 << 20
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def faults_of_a_block():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(NUM_BYTES)
    library.memset(block, 1, NUM_BYTES)
    library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep" and not freed_memory.keep():
    sys.exit(77)
faults_of_a_block()
print(faults_of_a_block())
"""


def faults(choice: str) -> int:
    """Page faults of the second use of 64 MiB."""
    found = subprocess.run([sys.executable, "-c", COUNT_FAULTS, choice], capture_output=True, text=True)
    if found.returncode == 77:
        pytest.skip("this C library has no mallopt")
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


def test_a_block_of_freed_memory_is_used_again_without_page_faults() -> None:
    assert faults("keep") * 10 < faults("return")


SHOW_ADVICE = """
import re
import torch
from pathlib import Path

from vime.trainer.cpu import freed_memory

freed_memory.keep()
tensor = torch.ones(1 << 22)
place = tensor[1 << 21 :].data_ptr()
for area in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())[1:]:
    start, end = (int(address, 16) for address in re.match(r"(\\w+)-(\\w+)", area).groups())
    if start <= place < end:
        print("hg" in area.partition("VmFlags:")[2].split())
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages")
def test_large_pages_are_asked_for_where_tensors_lie() -> None:
    found = subprocess.run([sys.executable, "-c", SHOW_ADVICE], capture_output=True, text=True)
    assert found.stdout == "True\n", found.stdout + found.stderr
