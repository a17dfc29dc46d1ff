"""Runs one program and ensures that no part of it outlives its owner, no matter how the owner dies.

    python -m vime.processes.launch --owner PID [--driver PID] [--remove FOLDER]... -- COMMAND ...

Two processes: the one that is started only waits and passes the exit code on, and its child supervises the program. So if any one
of owner, waiter, supervisor and program is killed (Ray kills the children of a dying actor), another is left to end the program's
whole tree and to remove its entries in /dev/shm, and the given folders if the driver is gone. The program's output passes through
the supervisor, so that a full disk costs lines of the log and not the program.
"""

import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from vime.surroundings import short_folder

POLL_SECONDS = 0.2
SHARED_MEMORY_SECONDS = 5.0
"""Interval at which the tree's shared memory is noted, so that it is known even if the whole tree is killed at once."""
KILL_SECONDS = 20.0
TRACKER_SECONDS = 3.0
ENDING_SECONDS = 5.0
LOG_CHUNK_BYTES = 1 << 16

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHARED_MEMORY = re.compile(rb"/dev/shm/(?:psm_|sem\.mp-)\S+")


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when the one that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


class Supervisor:
    """One program, its tree of processes and what they leave behind."""

    def __init__(
        self, command: list[str], *, owner: psutil.Process, driver: psutil.Process | None, temporary: str, remove: list[str]
    ) -> None:
        self._command, self._owner, self._driver = command, owner, driver
        self._temporary, self._remove = temporary, remove
        self._waiter = os.getppid()
        self._shared_memory: set[str] = set()
        self._stopping = False

    def run(self) -> int:
        """Runs the program to its end, or the owner's; returns its exit code (128 + signal if it was killed)."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"  # worth keeping for the next start
        program = subprocess.Popen(
            self._command,
            env={"TORCHINDUCTOR_CACHE_DIR": str(compiled), **os.environ, "TMPDIR": self._temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert program.stdout is not None
        copying = threading.Thread(target=_copy, args=(program.stdout.fileno(),), daemon=True)
        copying.start()
        code = self._watch(program)
        self._note_shared_memory()
        _kill_tree()
        copying.join(ENDING_SECONDS)
        for path in (self._temporary, *self._shared_memory):
            _remove(path)
        if self._remove and self._run_is_gone():
            for path in self._remove:
                _remove(path)
        return 128 - code if code is not None and code < 0 else code or 0

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _watch(self, program: subprocess.Popen[bytes]) -> int | None:
        noted = time.monotonic()
        while not self._stopping and os.getppid() == self._waiter and _is_alive(self._owner):
            code = program.poll()
            if code is not None:
                return code
            if time.monotonic() - noted > SHARED_MEMORY_SECONDS:
                self._note_shared_memory()
                noted = time.monotonic()
            time.sleep(POLL_SECONDS)
        return None

    def _run_is_gone(self) -> bool:
        """True if owner and driver have ended; one that is ending has killed the waiter just before."""
        deadline = time.monotonic() + ENDING_SECONDS
        while (alive := self._run_is_alive()) and os.getppid() != self._waiter and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not alive

    def _run_is_alive(self) -> bool:
        return _is_alive(self._owner) or (self._driver is not None and _is_alive(self._driver))

    def _note_shared_memory(self) -> None:
        for process in _tree():
            try:
                maps = Path(f"/proc/{process.pid}/maps").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            self._shared_memory |= {match.decode() for match in _SHARED_MEMORY.findall(maps)}


def _copy(source: int) -> None:
    """Copies the program's output to our own until it ends; output that does not fit on a full disk is lost."""
    while chunk := os.read(source, LOG_CHUNK_BYTES):
        with contextlib.suppress(OSError):
            os.write(1, chunk)


def _kill_tree() -> None:
    """Kills all processes below this one; Python's resource trackers last, because they end by themselves and clean up before."""
    started = time.monotonic()
    while (tree := _tree()) and time.monotonic() - started < KILL_SECONDS:
        grace = time.monotonic() - started < TRACKER_SECONDS
        for process in tree:
            if not (grace and _is_resource_tracker(process)):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                    process.kill()
        psutil.wait_procs(tree, timeout=POLL_SECONDS)


def _process(pid: int | None) -> psutil.Process | None:
    """The process with this number; None if there is none, as for the driver of a run on another machine."""
    try:
        return psutil.Process(pid) if pid is not None else None
    except psutil.NoSuchProcess:
        return None


def _is_alive(process: psutil.Process) -> bool:
    """True if a process still runs; a zombie has ended, and another process that has its number now does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _tree() -> list[psutil.Process]:
    """All processes below this one, which is a child subreaper and so inherits orphans."""
    return [process for process in psutil.Process().children(recursive=True) if process.is_running()]


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)


def main() -> None:
    """Reads the command line and runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owner", type=int, required=True, help="process whose end ends the program")
    parser.add_argument("--driver", type=int, help="process whose end, with the owner's, is the end of the run")
    parser.add_argument("--remove", action="append", default=[], help="folder to remove at the end of the run")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    owner = psutil.Process(arguments.owner)
    driver = _process(arguments.driver)
    temporary = tempfile.mkdtemp(prefix="vime-launch-", dir=short_folder())  # vLLM makes sockets there
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.fork()
    if supervisor == 0:
        os.setsid()
        sys.exit(Supervisor(command, owner=owner, driver=driver, temporary=temporary, remove=arguments.remove).run())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(supervisor, number))
    _, status = os.waitpid(supervisor, 0)
    _kill_tree()  # these two have something to do only if the supervisor itself was killed
    _remove(temporary)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
