"""What a running program and everything it started use, read from /proc of the host."""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
MAX_FILES = 4096
"""An empty file has no size, and takes a kilobyte of the host's memory all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Memory that belongs to the processes alone, in bytes, and the number of files they made in memory.

    Example: `Usage(memory_bytes=9_000_000, num_files=1)`.
    """

    memory_bytes: int
    num_files: int


def usage(root: int, *, files: bool) -> Usage:
    """Of a process and all its descendants, `files` if it has folders of its own; what has ended meanwhile counts nothing."""
    num_files = sum(_num_files(root, folder) for folder in ("tmp", "dev/shm")) if files else 0
    return Usage(memory_bytes=sum(_memory(process) for process in descendants(root)), num_files=num_files)


def descendants(root: int) -> list[int]:
    """A process and everything below it; in a process namespace, orphans are below its first process."""
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            try:
                children = Path(f"/proc/{process}/task/{thread}/children").read_text()
            except OSError:
                continue
            waiting += [int(child) for child in children.split()]
    return found


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
