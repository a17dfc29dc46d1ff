"""A host of runs: a process that makes them one after another, so that each takes over Ray, servers and trainer of the last.

    python -m vime.warm.host --run MODULE.FUNCTION --descriptor N
    python -m vime.warm.host --run MODULE.FUNCTION --listen PATH --seconds 600

The first serves a sweep, whose connection it inherits, and ends with it. The second, for `cluster.keep_warm`, waits `--seconds`
for the next run. `vime.warm.hosted_run` starts both.

A run that fails or is interrupted leaves nothing. A host whose code has changed on disk since it was loaded, or that was started
under other environment variables than its client has, ends without running anything; the client then starts another one.
"""

import argparse
import asyncio
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vime.hooks import load_hook
from vime.processes.launch import die_with_parent
from vime.runtime import Between, end_kept
from vime.warm.stamp import Stamp, changed_code, changed_variable, stamp_of_code
from vime.warm.wire import RunRequest, receive_request, send_answer

FAILED = 1


class Host:
    """The runs of one process; `run(words, started=…)` makes one and returns its exit code."""

    def __init__(self, run: Callable[..., int]) -> None:
        Between.keeps = True
        self._make = run
        self._environment: dict[str, str] | None = None
        """The environment of the first client, under which the parts of all runs were started."""
        self._code: Stamp | None = None
        """The stamp at the first run's end, when everything is loaded."""

    def serve(self, connection: socket.socket) -> str | None:
        """Makes the runs that come over a connection, until its end.

        Returns early, with the reason, if the host has to end; `refuse` must follow.
        """
        while (received := receive_request(connection)) is not None:
            request, files = received
            if reason := self._reason_against(request):
                _close(files)
                return reason
            send_answer(connection, pid=os.getpid())
            with _standard_files(files), _interrupted_with(connection):
                code = self._run(request)
            self._code = self._code or stamp_of_code()
            send_answer(connection, code=code)
        return None

    def _reason_against(self, request: RunRequest) -> str:
        """The reason why this process cannot make the run; empty if it can."""
        if request.ends_host:
            return "it was to end"
        self._environment = self._environment or request.environment
        if name := changed_variable(self._environment, request.environment):
            return f"the environment variable {name} has changed"
        file = changed_code(self._code) if self._code is not None else ""
        return f"{file} has changed" if file else ""

    def _run(self, request: RunRequest) -> int:
        try:
            return self._make(request.words, started=request.started)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else FAILED
        except BaseException:  # what ends a run must not end the host of the next
            traceback.print_exc()
            return FAILED


@contextmanager
def _standard_files(files: list[int]) -> Iterator[None]:
    """Replaces stdin, stdout and stderr by the client's within the block."""
    own = [os.dup(number) for number in range(len(files))]
    _replace(files)
    try:
        yield
    finally:
        _replace(own)


def _replace(files: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, file in enumerate(files):
        os.dup2(file, number)
    _close(files)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


@contextmanager
def _interrupted_with(connection: socket.socket) -> Iterator[None]:
    """Interrupts the run within the block when the connection ends, because the client is then gone."""
    ours, theirs = socket.socketpair()

    def watch() -> None:
        readable, _, _ = select.select([connection, theirs], [], [])
        if connection in readable and theirs not in readable:
            os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ours.send(b"\n")
        watching.join()
        ours.close()
        theirs.close()


def listen(host: Host, path: Path, *, seconds: float) -> None:
    """Serves one client after another, until none has come for `seconds`."""
    with socket.socket(socket.AF_UNIX) as server:
        path.unlink(missing_ok=True)
        server.bind(str(path))
        server.listen(1)
        server.settimeout(seconds)
        try:
            while True:
                connection, _ = server.accept()
                with connection:
                    if (reason := host.serve(connection)) is not None:
                        server.close()
                        path.unlink(missing_ok=True)  # before the answer, after which the client may start another host
                        refuse(connection, reason)
                        return
        except TimeoutError:
            return
        finally:
            path.unlink(missing_ok=True)
            log = path.with_suffix(".log")
            if log.is_file() and not log.stat().st_size:
                log.unlink()


def refuse(connection: socket.socket, reason: str) -> None:
    """Ends the parts that the last run has left, and then answers."""
    asyncio.run(end_kept())
    send_answer(connection, refused=reason)


def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--descriptor", type=int)
    parser.add_argument("--listen", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]  # they are text files
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs are started to ignore it
    host = Host(load_hook(arguments.run))
    try:
        if arguments.listen is not None:
            listen(host, arguments.listen, seconds=arguments.seconds)
            return
        die_with_parent(signal.SIGTERM)
        with socket.socket(fileno=arguments.descriptor) as connection:
            if (reason := host.serve(connection)) is not None:
                refuse(connection, reason)
    finally:
        asyncio.run(end_kept())


if __name__ == "__main__":
    main()
