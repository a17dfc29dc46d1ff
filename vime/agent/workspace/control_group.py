"""Control groups of Linux, where this process may make them: the kernel itself then bounds a workspace's memory and processes.

A workspace has a group below this process's own, in both versions of the interface: one folder with all limits (v2), or one for
each kind of limit (v1). Groups carry the number of their owner; those of dead owners are removed when another begins.
"""

import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PREFIX = "vime-workspace-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-(\d+)-\d+")
_GONE_SECONDS, _AGAIN_SECONDS = 2.0, 0.005
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Parents:
    """The folders in which groups are made, by what they limit; the same folder twice in version 2.

    Example: `Parents(memory=Path("/sys/fs/cgroup/memory"), pids=None, is_v2=False)`.
    """

    memory: Path | None
    pids: Path | None
    is_v2: bool


class ControlGroup:
    """The control group of one workspace; without `parents` that allow one it does nothing."""

    def __init__(self, parents: Parents, *, memory_bytes: int, num_processes: int) -> None:
        self._parents = parents
        self._folders: dict[str, Path] = {}
        name = _name()
        memory = {"memory.max": memory_bytes} if parents.is_v2 else {"memory.limit_in_bytes": memory_bytes}
        for kind, folder, limits in (("memory", parents.memory, memory), ("pids", parents.pids, {"pids.max": num_processes})):
            if folder is not None:
                own = self._folders[kind] = folder / name
                own.mkdir(exist_ok=True)
                for file, limit in limits.items():
                    (own / file).write_text(str(limit))

    @property
    def process_files(self) -> list[str]:
        """The files that a process writes `0` to in order to join."""
        return [str(folder / "cgroup.procs") for folder in dict.fromkeys(self._folders.values())]

    @property
    def bounds_memory(self) -> bool:
        """True if the kernel bounds the memory."""
        return "memory" in self._folders

    @property
    def bounds_processes(self) -> bool:
        """True if the kernel bounds the number of processes here, and counts refusals."""
        return "pids" in self._folders

    def num_out_of_memory(self) -> int:
        """Number of processes that the kernel has ended because the memory was used up."""
        file = "memory.events" if self._parents.is_v2 else "memory.oom_control"
        return self._count("memory", file, "oom_kill")

    def num_refused_processes(self) -> int:
        """Number of times that a process was refused because there were too many."""
        return self._count("pids", "pids.events", "max")

    def removed(self) -> bool:
        """Removes the group, and says whether it is gone; the kernel needs a moment after its last process."""
        return all([_removed(folder) for folder in dict.fromkeys(self._folders.values())])

    def _count(self, kind: str, file: str, name: str) -> int:
        if kind not in self._folders:
            return 0
        try:
            lines = (self._folders[kind] / file).read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


@cache
def parents() -> Parents:
    """The folders in which this process may make groups; tried once, and what dead owners have left is removed."""
    own = {kinds: path for _, kinds, path in (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())}
    found: dict[str, Path] = {}
    root = Path("/sys/fs/cgroup")
    if "" in own and _has_v2(root, own[""]) is not None:
        folder = _has_v2(root, own[""])
        return Parents(memory=folder, pids=folder, is_v2=True)
    for kind in ("memory", "pids"):
        path = next((path for kinds, path in own.items() if kind in kinds.split(",")), None)
        for folder in (root / kind / (path or "").lstrip("/"), root / kind):
            if path is not None and kind not in found and _is_usable(folder):
                found[kind] = folder
    return Parents(memory=found.get("memory"), pids=found.get("pids"), is_v2=False)


def _has_v2(root: Path, path: str) -> Path | None:
    """This process's own folder of version 2, or the topmost one, if limits can be set below it."""
    for folder in (root / path.lstrip("/"), root):
        with contextlib.suppress(OSError):
            if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()) and _is_usable(folder):
                return folder
    return None


def _is_usable(folder: Path) -> bool:
    """True if groups can be made in a folder; removes those of dead owners on the way."""
    trial = folder / _name()
    try:
        trial.mkdir(exist_ok=True)
        usable = os.access(trial / "cgroup.procs", os.W_OK)
        trial.rmdir()
    except OSError:
        return False
    for left in folder.glob(f"{_PREFIX}*"):
        name = _NAME.fullmatch(left.name)
        if name is not None and _started(int(name[1])) != name[2]:
            _end(left)
    return usable


def _end(folder: Path) -> None:
    """Ends a group of a dead owner with its processes; gives up on the unkillable."""
    give_up = time.monotonic() + _GONE_SECONDS
    while not _removed(folder) and time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            for process in (folder / "cgroup.procs").read_text().split():
                os.kill(int(process), signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _name() -> str:
    """A new name that tells its owner."""
    return f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"


def _started(process: int) -> str:
    """The time when a process was started, in the kernel's ticks; "" if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
