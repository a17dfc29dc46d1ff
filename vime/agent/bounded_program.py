"""Runs one program: reads its output, watches its time and memory, and ends it with everything that it started."""

import os
import re
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from vime.agent.process_tree import MAX_FILES, freeze, usage
from vime.config import SandboxConfig

FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.1, 0.05
"""Time of the first measurement of memory, and interval of the later ones; short programs end before."""
_GONE_SECONDS = 10.0
_CLOCK_SECONDS = 0.1
"""Resolution with which the kernel counts CPU time."""
_OUTPUTS = {"stdout": 1, "stderr": 2}
"""Limits as multiples of `output_characters`; stderr has room for a traceback of that length after the program's own text."""
_BYTES_PER_CHARACTER = 4
_MAX_NOTE_BYTES = 4096
_FIRST_PROCESS = re.compile(rb'"child-pid": *(\d+)')


class BoundedProgram:
    """A command that is run once: `run` blocks until all its processes have ended; `kill` may be called from another thread."""

    def __init__(self, config: SandboxConfig, *, sandboxed: bool) -> None:
        self._config = config
        self._sandboxed = sandboxed
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._first_process: int | None = None
        self._first_process_file: int | None = None
        self._killed = False
        self._go: int | None = None
        self.stopped = ""
        """The reason why the owner ended the program; "" if it did not."""
        self.read: dict[str, bytearray] = {name: bytearray() for name in ("stdout", "stderr", "report", "status")}
        output = _BYTES_PER_CHARACTER * config.output_characters
        self._looked, self._cpu_seconds, self._ended = 0.0, 0.0, 0.0
        self._most = {"stdout": output, "stderr": 2 * output, "report": _MAX_NOTE_BYTES, "status": _MAX_NOTE_BYTES}

    def run(self, start: Callable[[], subprocess.Popen[bytes]], *, notes: dict[str, int], go: int) -> int:
        """Starts the command, waits for its end, and returns its exit status, which is -n if signal n ended it.

        `notes` holds the read ends of the pipes `report` and `status`. One byte is written to `go` when the launcher has
        reported.
        """
        self._go = go
        with self._lock:
            if self._killed:
                return -signal.SIGKILL
            self._process = process = start()
            self._looked = time.monotonic()
        exit_file = os.pidfd_open(process.pid)
        assert process.stdout is not None and process.stderr is not None
        try:
            with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
                files = {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno(), **notes, "exit": exit_file}
                for name, file in files.items():
                    selector.register(file, selectors.EVENT_READ, name)
                self._follow(selector)
        finally:
            self.kill()
            select.select([exit_file], [], [], _GONE_SECONDS)
            with self._lock:  # its number is given to another process as soon as it is waited for
                process.wait()
                self._process = None
            os.close(exit_file)
            self._wait_until_gone()
        return process.returncode

    def may_have_computed(self, cpu_seconds: float) -> bool:
        """True if one of the processes may have used `cpu_seconds`, by the last measurement and the time since then."""
        return self._cpu_seconds + (self._ended - self._looked) * (os.cpu_count() or 1) >= cpu_seconds - _CLOCK_SECONDS

    def kill(self) -> None:
        """Ends the program with everything that it started.

        In a complete sandbox all processes end with the first. In an incomplete one, or without a sandbox, each is killed.
        """
        with self._lock:
            self._killed = True
            if self._process is None:
                return
            complete = self._sandboxed and self.read["report"]
            others = [] if complete else freeze(self._process.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for process in others:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _follow(self, selector: selectors.BaseSelector) -> None:
        """Reads output and checks limits until the command has ended and its pipes are closed."""
        now = time.monotonic()
        deadline, look = now + self._config.wall_seconds, now + FIRST_LOOK_SECONDS
        while selector.get_map():
            ready = selector.select(max(0.0, min(deadline, look) - now))
            for key, _ in sorted(ready, key=lambda event: event[0].data != "report"):  # the report was written before any output
                if key.data == "exit":
                    selector.unregister(key.fd)
                    self._ended = time.monotonic()
                    self.kill()  # ends processes that are left
                    deadline = min(deadline, time.monotonic() + _GONE_SECONDS)
                elif not self._take(key.data, os.read(key.fd, 65536)):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if now >= deadline:
                if self.stopped or self._killed:
                    return  # another process holds the pipe
                self._stop("time_limit")
                deadline = now + _GONE_SECONDS
            if now >= look:
                self._look()
                look = now + LOOK_SECONDS

    def _take(self, name: str, chunk: bytes) -> bool:
        """Stores a chunk of output within its limit (of stderr the end is kept); False at the end of a pipe."""
        read, most = self.read[name], self._most[name]
        read += chunk
        too_long = name in _OUTPUTS and self._too_long(read, _OUTPUTS[name] * self._config.output_characters)
        if name == "stderr":
            del read[: max(0, len(read) - most)]
        else:
            del read[most:]
        if too_long:
            self._stop("output_limit")
        if name == "report" and self._go is not None and read:
            with suppress(BrokenPipeError):
                os.write(self._go, b"!")
            self._go = None
        if name == "status" and self._first_process is None and (match := _FIRST_PROCESS.search(read)):
            self._first_process = int(match.group(1))
            with suppress(ProcessLookupError):
                self._first_process_file = os.pidfd_open(self._first_process)
        return bool(chunk)

    def _too_long(self, output: bytearray, limit: int) -> bool:
        return len(output) > limit and len(output.decode(errors="replace")) > limit

    def _look(self) -> None:
        """Ends a program whose processes together exceed a limit; the kernel limits each process for itself."""
        process = self._process
        assert process is not None
        root = self._first_process if self._sandboxed else process.pid
        if root is None or not self.read["report"]:
            return  # its root folder is still the host's
        began = time.monotonic()  # on a busy machine the program computes on while it is measured
        used = usage(root, files=self._sandboxed)
        if used.cpu_seconds >= self._cpu_seconds:  # less is measured when the process that computed has just ended
            self._cpu_seconds, self._looked = used.cpu_seconds, began
        if used.memory_bytes > self._config.memory_bytes:
            self._stop("memory_limit")
        elif used.num_files > MAX_FILES:
            self._stop("file_limit")

    def _stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        self.kill()

    def _wait_until_gone(self) -> None:
        """Waits for the first process of the namespace, which ends after all others."""
        if self._first_process_file is None:
            return
        select.select([self._first_process_file], [], [], _GONE_SECONDS)
        os.close(self._first_process_file)
