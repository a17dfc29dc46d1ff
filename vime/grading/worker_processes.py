"""A pool of processes that answer one line with one line within a time limit; a late process is killed and replaced."""

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from vime.threads import Threads

START_SECONDS = 120.0
MAX_CALLS = 2_000
"""Calls after which a process is replaced, because its memory grows with each."""


class WorkerProcesses:
    """Processes of one module (`python -m MODULE`), which start when they are first needed.

    Example: `await WorkerProcesses("vime.grading.maths_worker", num_workers=2).call({"answer": "1", "gold": ["1"]}, seconds=6)`.
    """

    def __init__(self, module: str, *, num_workers: int) -> None:
        self._module = module
        self._threads = Threads(module, num_threads=num_workers)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        atexit.register(self.close)

    async def call(self, request: dict[str, Any], *, seconds: float) -> str | None:
        """The answer to a request, or None if there is none `seconds` after a process has received it.

        Callers wait until a process is free. A caller that is cancelled meanwhile leaves no request behind.
        """
        return await self._threads.run(self._call, request, seconds)

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            for worker in self._all:
                worker.kill()
            self._all.clear()

    def _call(self, request: dict[str, Any], seconds: float) -> str | None:
        worker = self._take()
        answer = worker.ask(json.dumps({**request, "seconds": seconds}), seconds)
        if answer is None or worker.num_calls >= MAX_CALLS:
            worker.kill()
            with self._lock:
                self._all.discard(worker)
        else:
            self._idle.put(worker)
        return answer

    def _take(self) -> "_Worker":
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        worker = _Worker(self._module)
        with self._lock:
            self._all.add(worker)
        return worker


class _Worker:
    def __init__(self, module: str) -> None:
        command = [sys.executable, "-m", module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._buffer = b""
        self.num_calls = 0
        if self._line(START_SECONDS) != "ready":
            self.kill()
            raise RuntimeError(f"{' '.join(command)} did not start: run it by hand to see why")

    def ask(self, request: str, seconds: float) -> str | None:
        """The line that answers, or None after `seconds` or if the process has ended."""
        assert self._process.stdin is not None
        self.num_calls += 1
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._line(seconds)

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _line(self, seconds: float) -> str | None:
        assert self._process.stdout is not None
        file, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            chunk = os.read(file, 4096)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()
