"""What a running program and everything it started use, read from /proc of the host."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOPPED, _STOP_TRIES = "TtZX", 1000
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
MAX_FILES = 4096
"""An empty file has no size, and takes a kilobyte of the host's memory all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Memory that belongs to the processes alone, in bytes, the number of files they made in memory, and the CPU time of the one
    that used most.

    Example: `Usage(memory_bytes=9_000_000, num_files=1, cpu_seconds=0.4)`.
    """

    memory_bytes: int
    num_files: int
    cpu_seconds: float


def usage(root: int, *, files: bool) -> Usage:
    """Of a process and all its descendants, `files` if it has folders of its own; what has ended meanwhile counts nothing."""
    num_files = sum(_num_files(root, folder) for folder in ("tmp", "dev/shm")) if files else 0
    processes = descendants(root)
    memory, cpu_seconds = sum(map(_memory, processes)), max(map(_cpu_seconds, processes))
    return Usage(memory_bytes=memory, num_files=num_files, cpu_seconds=cpu_seconds)


def descendants(root: int) -> list[int]:
    """A process and everything below it; in a process namespace, orphans are below its first process."""
    found, waiting = [], [root]
    while waiting:
        found.append(process := waiting.pop())
        waiting += _children(process)
    return found


def freeze(root: int) -> list[int]:
    """Stops a process and its descendants, parents first, since what is stopped starts nothing; returns them."""
    found, waiting = [], [root]
    while waiting:
        found.append(process := waiting.pop())
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
        for _ in range(_STOP_TRIES):
            if _state(process) in _STOPPED:
                break
            time.sleep(0.001)
        waiting += _children(process)
    return found


def _children(process: int) -> list[int]:
    """Of all threads of a process; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split()]
    return found


def _state(process: int) -> str:
    """The letter of its state, X if it is gone."""
    numbers = _stat(process)
    return numbers[0] if numbers else "X"


def _cpu_seconds(process: int) -> float:
    numbers = _stat(process)
    return (int(numbers[11]) + int(numbers[12])) / _TICKS if numbers else 0.0


def _stat(process: int) -> list[str]:
    """What the kernel says of it behind its name, empty if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _memory(process: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _num_files(root: int, folder: str) -> int:
    try:
        status = os.statvfs(f"/proc/{root}/root/{folder}")
    except OSError:
        return 0
    return status.f_files - status.f_ffree
