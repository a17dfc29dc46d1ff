"""Has a host make a run, as if it ran here: in this terminal, with Ctrl-C, and with its exit code."""

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from vime.surroundings import private_folder
from vime.warm.wire import RunRequest, receive_answer, send_request

COMMAND = [sys.executable, "-m", "vime.warm.host", "--run", "vime.run.run"]
END_SECONDS = 90.0
"""Time limit for a host to end what its last run has left."""
FAILED = 1
KEEP_WARM = "cluster.keep_warm"
POLL_SECONDS = 0.1


class RunDeclined(Exception):
    """The host does not make the run, and ends; the message says why."""


def run_on(connection: socket.socket, words: list[str], *, started: float | None = None) -> int:
    """Has the host at the other end make a run; returns the exit code. Raises `RunDeclined`.

    SIGINT and SIGTERM interrupt the run; once it has ended, they are raised here again.
    """
    environment = psutil.Process().environ()  # as the program was started: libraries have set variables since
    request = RunRequest(words=words, environment=environment, started=time.time() if started is None else started)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        send_request(connection, request, files=[0, 1, 2])
        answer = receive_answer(connection)
    except ConnectionError:
        answer = None
    if answer is None:
        raise RunDeclined("it has ended")
    if "pid" not in answer:
        raise RunDeclined(answer["refused"])
    with _signals_to(answer["pid"]) as came:
        ended = receive_answer(connection)
    if came:
        signal.raise_signal(came[0])
    if ended is None:
        sys.stderr.write("\nthe process of the run has died; what it had written is in its run folder\n")
        return FAILED
    return int(ended["code"])


@contextmanager
def _signals_to(pid: int) -> Iterator[list[int]]:
    """Passes SIGINT and SIGTERM on to another process within the block, while this one waits; yields those that came."""
    came: list[int] = []

    def send(number: int, frame: object) -> None:
        came.append(number)
        with suppress(ProcessLookupError):  # it has ended; its end will be seen
            os.kill(pid, number)

    before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_on_waiting_host(words: list[str]) -> int | None:
    """Has the host that waits for runs from this folder make one; returns the exit code, None if there is none that can.

    `cluster.keep_warm=0` among the words ends the host.
    """
    if not _socket_path().exists():
        return None
    with _taken(_socket_path()) as path, socket.socket(socket.AF_UNIX) as connection:
        if path is None or not _connects(connection, path):
            return None
        ends = any(word.partition("=")[::2] == (KEEP_WARM, "0") for word in words)
        try:
            if ends:
                send_request(connection, RunRequest(words=[], ends_host=True), files=[0, 1, 2])
                receive_answer(connection)
                return None
            return _shown(run_on(connection, words))
        except RunDeclined as reason:
            sys.stderr.write(f"the servers and the trainer of the last run are not used again: {reason}\n")
            return None


def run_on_new_host(words: list[str], *, seconds: float, started: float) -> int | None:
    """Starts a host that waits `seconds` after each run for another from this folder, and has it make this one.

    Returns the exit code; None if another host is already at work, or if it cannot be started.
    """
    with _taken(_socket_path()) as path, socket.socket(socket.AF_UNIX) as connection:
        if path is None:
            return None
        path.unlink(missing_ok=True)
        with path.with_suffix(".log").open("wb") as log:
            command = [*COMMAND, "--listen", str(path), "--seconds", str(seconds)]
            host = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        while not _connects(connection, path):
            if host.poll() is not None:
                return None
            time.sleep(POLL_SECONDS)
        return _shown(run_on(connection, words, started=started), seconds=seconds)


def _shown(code: int, *, seconds: float | None = None) -> int:
    """The exit code, after a line on the parts that are left."""
    if code == 0:
        how_long = f" for {seconds:.0f} s" if seconds is not None else ""
        sys.stderr.write(f"servers and trainer stay{how_long} for the next run from this folder; {KEEP_WARM}=0 ends them\n")
    return code


def _socket_path() -> Path:
    """The socket on which the host for runs of this interpreter from this folder listens."""
    name = hashlib.sha256(f"{sys.executable}\n{os.getcwd()}".encode()).hexdigest()[:16]
    return private_folder("warm") / f"{name}.socket"


@contextmanager
def _taken(path: Path) -> Iterator[Path | None]:
    """Keeps other clients from using the host at `path` within the block; yields None if one already does."""
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield path


def _connects(connection: socket.socket, path: Path) -> bool:
    try:
        connection.connect(str(path))
    except OSError:
        return False
    return True


class OwnHost:
    """A host for the runs of one sweep, started with the first of them; another takes the place of one that has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def run(self, words: list[str]) -> int:
        """One run; returns its exit code."""
        started = time.time()
        if self._connection is not None:
            try:
                return run_on(self._connection, words, started=started)
            except RunDeclined:
                self.close()
        self._start()
        assert self._connection is not None
        try:
            return run_on(self._connection, words, started=started)
        except RunDeclined as reason:  # one run of several, which go on
            sys.stderr.write(f"\nthe process of the run did not start: {reason}\n")
            return FAILED

    def close(self) -> None:
        """Ends the host and all that its last run has left."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is None or connection is None:
            return
        connection.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        self._connection, of_host = socket.socketpair()
        command = [*COMMAND, "--descriptor", str(of_host.fileno())]
        with of_host:
            self._process = subprocess.Popen(command, pass_fds=[of_host.fileno()], start_new_session=True)
