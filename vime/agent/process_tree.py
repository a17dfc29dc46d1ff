"""Memory, files and CPU time of a running program and all its descendants, read from the host's /proc."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOPPED, _STOP_TRIES = "TtZX", 1000
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
MAX_FILES = 4096
"""Most files of a program; even an empty one takes a kilobyte of the host's memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUsage:
    """Resources that a program uses.

    These are the private memory of its processes in bytes, the number of files that they made in memory, and the CPU time of the
    process that used most.

    Example: `ProcessUsage(memory_bytes=9_000_000, num_files=1, cpu_seconds=0.4)`.
    """

    memory_bytes: int
    num_files: int
    cpu_seconds: float


def usage(root: int, *, files: bool) -> ProcessUsage:
    """The usage of a process and its descendants; with `files` the files in its own folders are counted as well."""
    num_files = sum(_num_files(root, folder) for folder in ("tmp", "dev/shm")) if files else 0
    processes = descendants(root)
    memory, cpu_seconds = sum(map(_memory, processes)), max(map(_cpu_seconds, processes))
    return ProcessUsage(memory_bytes=memory, num_files=num_files, cpu_seconds=cpu_seconds)


def descendants(root: int) -> list[int]:
    """A process and all its descendants; in a process namespace, orphans are children of the first process."""
    found, waiting = [], [root]
    while waiting:
        found.append(process := waiting.pop())
        waiting += _children(process)
    return found


def freeze(root: int) -> list[int]:
    """Stops a process and its descendants and returns them; parents are stopped first, so that they start no further ones."""
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
    """The children of all threads of a process; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split()]
    return found


def _state(process: int) -> str:
    """The letter of a process's state; X if it has ended."""
    numbers = _stat(process)
    return numbers[0] if numbers else "X"


def _cpu_seconds(process: int) -> float:
    numbers = _stat(process)
    return (int(numbers[11]) + int(numbers[12])) / _TICKS if numbers else 0.0


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat after the process's name; empty if it has ended."""
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
