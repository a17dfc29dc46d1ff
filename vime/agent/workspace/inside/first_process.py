"""The first process of a workspace: it starts commands, reads and writes files, and ends all that a command leaves behind.

The owner sends requests over a socket, one packet each: a key, a verb and fields, separated by zero bytes, with file descriptors
attached. Each request but `kill` and `end` gets one reply with its key. When the owner is gone the process ends, and the kernel
ends all others with it. Arguments: the socket's number, and the maximum number of processes at one time.

Neither it nor its modules import `os` or anything else that is written in Python, because this would double the time to start.
"""

import _signal  # pyright: ignore[reportMissingImports]
import _socket
import gc
import posix
import select
import sys

from vime.agent.workspace.inside.command_processes import (
    DUMPABLE,
    KILL,
    REAPER,
    STOP,
    limit_processes,
    numbers,
    outside,
    set_option,
    sweep,
)
from vime.agent.workspace.inside.files import VERBS

_MOST_BYTES, _DESCRIPTOR_BYTES, _INTERNAL = 1 << 18, 4, 5
_SOCKET_LEVEL, _RIGHTS = 1, 1
"""SOL_SOCKET and SCM_RIGHTS, which only the slow module `socket` names."""
_CHILD_ENDED, _NUM_SIGNALS = 17, 31
_REAP_MILLISECONDS = 500
"""Interval at which orphans that have ended are taken off while there may be some."""
_GONE_LOOKS, _GONE_SECONDS = 5000, 0.001
_MOST_FILES = 16384
_NOT_STARTED, _MISSING = 127, 2
_ENDED_FIRST = b"500"
"""The kernel's preference for ending a command, and not this process, when memory is short."""

_poll = select.poll()
_running: dict[int, tuple[bytes, bytes, int]] = {}
"""Key, mode and pidfd of each command by its process. The mode is `ends` if all processes that it started end with it, `keeps` if
they live on, and `inner` for our own programs, which leave nothing."""
_ended: dict[int, int] = {}
"""The ends of commands that are not yet answered for."""
_ending: set[int] = set()
_kept: set[int] = set()


def main() -> None:
    """Answers requests until the owner is gone."""
    gc.disable()  # nothing here refers to itself, and a collection would copy memory that all workspaces share
    channel, processes = _socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    posix.set_inheritable(channel.fileno(), False)
    for number in range(1, _NUM_SIGNALS + 1):
        if number not in (KILL, STOP):
            _signal.signal(number, _signal.SIG_DFL if number == _CHILD_ENDED else _signal.SIG_IGN)
    set_option(DUMPABLE, 0)  # nobody inside may look into this process
    _poll.register(channel, select.POLLIN)
    _reply(channel, b"0", b"ok")
    while True:
        ready = _poll.poll(_REAP_MILLISECONDS if _running or _kept else None)
        if any(file == channel.fileno() for file, _ in ready):
            _take(channel, processes)
        _reap(channel)


def _take(channel: _socket.socket, processes: int) -> None:
    """Reads one request and answers it, or starts its command."""
    request, attached, _, _ = channel.recvmsg(_MOST_BYTES, 1024)
    if not request:
        posix._exit(0)
    packed = b"".join(data for *_, data in attached)
    at = range(0, len(packed), _DESCRIPTOR_BYTES)
    files = [int.from_bytes(packed[start : start + _DESCRIPTOR_BYTES], sys.byteorder) for start in at]
    key, verb, *fields = request.split(b"\0")
    opened: list[int] = []
    try:
        if verb == b"run":
            _run(key, fields, files, processes)
        elif verb == b"kill":
            _ending.update(process for process, (name, *_) in _running.items() if name == fields[0])
            _sweep()
        elif verb == b"end":
            _ending.update(_running)
            _kept.clear()
            _sweep()
        else:
            found, opened = VERBS[verb](fields, files)
            _reply(channel, key, b"ok", *found, files=opened)
    except OSError as error:
        _reply(channel, key, b"error", str(error.errno or _INTERNAL).encode())
    finally:
        for file in (*files, *opened):
            posix.close(file)


def _run(key: bytes, fields: list[bytes], files: list[int], processes: int) -> None:
    """Starts a program. Fields: mode, folder, number of variables, variables, words; files: stdin, stdout, stderr."""
    mode, folder, number, *rest = fields
    variables, words = rest[: int(number)], rest[int(number) :]
    process = posix.fork()
    if process == 0:
        _become(folder, variables, words, files, processes)
    exited = posix.pidfd_open(process)
    _running[process] = (key, mode, exited)
    _poll.register(exited, select.POLLIN)


def _become(folder: bytes, variables: list[bytes], words: list[bytes], files: list[int], processes: int) -> None:
    """Turns a child into the program, or ends it with the reason in its stderr."""
    try:
        posix.setsid()
        for target, file in enumerate(files):
            posix.dup2(file, target)
        posix.closerange(3, _MOST_FILES)
        for number in range(1, _NUM_SIGNALS + 1):
            if number not in (KILL, STOP):
                _signal.signal(number, _signal.SIG_DFL)
        set_option(DUMPABLE, 1)
        set_option(REAPER, 1)  # its orphans stay below it, so that they end with it and not with another command
        score = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(score, _ENDED_FIRST)
        limit_processes(processes)
        posix.chdir(folder)
        _execute(words, dict(pair.split(b"=", 1) for pair in variables))
    except OSError as error:
        posix.write(2, words[0] + b": " + (error.strerror or "").encode() + b"\n")
    finally:
        posix._exit(_NOT_STARTED)


def _execute(words: list[bytes], variables: dict[bytes, bytes]) -> None:
    """Becomes a program, which is looked for in the folders of PATH as a shell does; returns only by raising OSError."""
    folders = [b""] if b"/" in words[0] else [folder + b"/" for folder in variables.get(b"PATH", b"/usr/bin").split(b":")]
    found = FileNotFoundError(_MISSING, "command not found")
    for folder in folders:
        try:
            posix.execve(folder + words[0], words, variables)
        except (FileNotFoundError, NotADirectoryError) as error:
            found = error
    raise found


def _reap(channel: _socket.socket) -> None:
    """Reaps processes that have ended, and answers for commands."""
    _collect()
    while _ended:
        process, status = _ended.popitem()
        _answer(channel, process, status)


def _collect() -> None:
    """Takes off all processes that have ended, and notes how commands did."""
    while True:
        try:
            process, status = posix.waitpid(-1, posix.WNOHANG)
        except ChildProcessError:
            return
        if not process:
            return
        if process in _running:
            _ended[process] = status


def _sweep() -> None:
    """Ends all that belongs to no command that goes on, and waits until it is gone."""
    left = sweep(_protected())
    for _ in range(_GONE_LOOKS):
        _collect()
        left.intersection_update(numbers())
        if not left:
            return
        select.select([], [], [], _GONE_SECONDS)


def _answer(channel: _socket.socket, process: int, status: int) -> None:
    """Ends or keeps the processes that a command has left; replies with its status, whether the disk is full, and their
    number."""
    key, mode, exited = _running.pop(process)
    _poll.unregister(exited)
    posix.close(exited)
    num_left = len(numbers())
    is_ended = process in _ending
    _ending.discard(process)
    if is_ended or mode == b"ends":
        _sweep()
    elif mode == b"keeps":
        _kept.update(outside(_protected()))
    space = posix.statvfs("/tmp")
    is_full = not space.f_bavail or not space.f_ffree
    _reply(channel, key, b"ok", str(status).encode(), b"full" if is_full else b"free", str(num_left).encode())


def _protected() -> set[int]:
    """The first processes of all running commands, and processes that earlier commands have left deliberately."""
    if _kept:
        _kept.intersection_update(numbers())
    return {process for process in _running if process not in _ending} | _kept


def _reply(channel: _socket.socket, *fields: bytes, files: "list[int] | None" = None) -> None:
    packed = b"".join(file.to_bytes(_DESCRIPTOR_BYTES, sys.byteorder) for file in files or ())
    attached = [(_SOCKET_LEVEL, _RIGHTS, packed)] if files else []
    try:
        channel.sendmsg([b"\0".join(fields)], attached)
    except OSError:  # the owner is gone
        posix._exit(0)


if __name__ == "__main__":
    main()
