"""Resources that a workspace's processes use, measured from outside where the kernel does not bound them."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vime.agent.process_tree import descendants

_FIELD = re.compile(r"^(RssAnon|RssShmem|Threads):\s+(\d+)", re.MULTILINE)
_SHARE = re.compile(r"^(Pss_Anon|Pss_Shmem):\s+(\d+)", re.MULTILINE)
_KILOBYTE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """Memory of all processes in bytes, without files that only the disk holds, and their number, threads included.

    Example: `Used(memory_bytes=52_000_000, num_processes=9)`.
    """

    memory_bytes: int
    num_processes: int


def used_by(first_process: int, *, memory_limit: int) -> Used:
    """The usage of a process and its descendants; memory that several share counts once if that decides about the limit."""
    processes = descendants(first_process)
    memory = tasks = 0
    for process in processes:
        found = dict(_FIELD.findall(_text(process, "status")))
        memory += (int(found.get("RssAnon", 0)) + int(found.get("RssShmem", 0))) * _KILOBYTE
        tasks += int(found.get("Threads", 0))
    if memory > memory_limit:  # this takes longer
        texts = (_text(process, "smaps_rollup") for process in processes)
        memory = sum(int(size) for text in texts for _, size in _SHARE.findall(text)) * _KILOBYTE
    return Used(memory_bytes=memory, num_processes=tasks)


def _text(process: int, name: str) -> str:
    """A file of a process in /proc; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/{name}").read_text()
    return ""
