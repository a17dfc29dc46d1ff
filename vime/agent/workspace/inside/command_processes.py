"""The processes of a workspace by their commands, and the end of those that belong to none."""

import _ctypes
import posix
import sys

KILL, STOP, CONTINUE = 9, 19, 18
"""The signals' numbers, which only the slow module `signal` names."""
DUMPABLE, REAPER = 4, 36
"""PR_SET_DUMPABLE and PR_SET_CHILD_SUBREAPER."""
_NUM_PROCESSES, _LIMIT_BYTES = 6, 8
"""RLIMIT_NPROC, and the size of each of the two numbers of a limit."""
_C = _ctypes.dlopen(None, 0)  # pyright: ignore[reportArgumentType]
_PRCTL, _SETRLIMIT = _ctypes.dlsym(_C, "prctl"), _ctypes.dlsym(_C, "setrlimit")


def set_option(option: int, value: int) -> None:
    """The system call prctl."""
    _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0))


def limit_processes(most: int) -> None:
    """The system call setrlimit: this user gets no new process while it has `most` processes."""
    _ctypes.call_function(_SETRLIMIT, (_NUM_PROCESSES, 2 * most.to_bytes(_LIMIT_BYTES, sys.byteorder)))


def sweep(protected: set[int]) -> set[int]:
    """Kills every process but this one, the protected ones and their descendants; returns those that it has killed.

    All are stopped first, at once, so that none can start another meanwhile.
    """
    if not protected:
        _signal(-1, KILL)
        return set(numbers())
    _signal(-1, STOP)
    doomed = outside(protected)
    for process in doomed:
        _signal(process, KILL)
    _signal(-1, CONTINUE)
    return doomed


def outside(roots: set[int]) -> set[int]:
    """All processes except this one, those of `roots` and their descendants."""
    parents: dict[int, int] = {}
    for process in numbers():
        try:
            file = posix.open(f"/proc/{process}/stat", posix.O_RDONLY)
        except OSError:  # it has ended
            continue
        try:
            parents[process] = int(posix.read(file, 4096).rpartition(b")")[2].split()[1])
        except ProcessLookupError:
            pass
        finally:
            posix.close(file)

    def is_inside(process: int) -> bool:
        while process > 1:
            if process in roots:
                return True
            process = parents.get(process, 0)
        return False

    return {process for process in parents if not is_inside(process)}


def numbers() -> list[int]:
    """All processes but this one."""
    return [int(name) for name in posix.listdir("/proc") if name.isdigit() and name != "1"]


def _signal(process: int, number: int) -> None:
    try:
        posix.kill(process, number)
    except ProcessLookupError:
        pass
