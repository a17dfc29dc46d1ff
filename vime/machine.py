"""This process's share of the machine: memory and cores.

In a container or a batch job the share is what control groups (cgroup v1 and v2) and processor affinity grant; elsewhere it is
all of the host's.

Libraries that ask the system get the host's numbers; a container may have only a hundredth of them.
"""

import os
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
NO_LIMIT = "max"
"""Value of a control group of version 2 that means no limit."""


def memory_bytes() -> int:
    """The most memory that this process and the others of its container may have together."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([host, *(limit for folder in _groups("memory") if (limit := _memory_limit(folder)) is not None)])


def available_memory_bytes() -> int:
    """The memory that can be taken now without anything being ended or moved to disk."""
    free = [_counter(PROC / "meminfo", "MemAvailable:") * 1024 or memory_bytes()]
    for folder in _groups("memory"):
        limit = _memory_limit(folder)
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            stat = folder / "memory.stat"
            cached = _counter(stat, "total_inactive_file") or _counter(stat, "inactive_file")
            free.append(limit - used + cached)
    return max(0, min(free))


def core_quota() -> float | None:
    """Number of cores whose time a control group grants, all threads together; None without such a limit."""
    quotas = [quota for folder in _groups("cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def num_cores() -> int:
    """The number of threads that can compute at the same time: the cores that this process may use, within the quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def num_killed_for_memory() -> int:
    """Processes that the kernel has killed since it started because memory ran out, here or in another container."""
    return _counter(PROC / "vmstat", "oom_kill")


def _groups(controller: str) -> list[Path]:
    """Folders of the control groups of this process that can limit `memory` or `cpu`, as far as they are visible here."""
    paths: dict[str, str] = {}
    for line in _lines(PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)  # version 2 has an empty name
    found: list[Path] = []
    for line in _lines(PROC / "self" / "mountinfo"):
        mounted, _, system = line.partition(" - ")
        kind, *_, options = system.split(" ")
        name = "" if kind == "cgroup2" else controller
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            root, place = (word.encode().decode("unicode_escape") for word in mounted.split(" ")[3:5])
            found += _from_group_to_top(paths.get(name, "/"), root=root, place=Path(place))
    return found


def _from_group_to_top(path: str, *, root: str, place: Path) -> list[Path]:
    """A group's folder and those above it; `root` is the group that is visible at `place`, others than below it are not."""
    group = PurePosixPath(path)
    inside = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    folders = [place / inside, *(place / folder for folder in inside.parents)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _memory_limit(folder: Path) -> int | None:
    above = _counter(folder / "memory.stat", "hierarchical_memory_limit")  # version 1: also of groups that are not visible
    found = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    return min((limit for limit in (found, above) if limit), default=None)


def _quota(folder: Path) -> float | None:
    whole = _lines(folder / "cpu.max")
    if whole:
        quota, _, period = whole[0].partition(" ")
        return None if quota == NO_LIMIT else int(quota) / int(period or 100_000)
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _number(*files: Path) -> int | None:
    """The number in the first of the files that there is; None without one, and without a limit."""
    lines = next((lines for file in files if (lines := _lines(file))), [NO_LIMIT])
    return None if lines[0] == NO_LIMIT else int(lines[0])


def _counter(file: Path, name: str) -> int:
    """The number behind a name; 0 where there is none."""
    return next((int(words[1]) for line in _lines(file) if (words := line.split()) and words[0] == name), 0)


def _lines(file: Path) -> list[str]:
    """A file's lines; none if it cannot be read, for example without /proc."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
