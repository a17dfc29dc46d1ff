"""One side of a benchmark: a process that waits for its turn, does one step and reports how long it took.

The sides take turns, so that the noise of a shared machine affects all of them alike. This module imports only the standard
library, because a side may run under another Python installation than this project's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "@turn "
"""Prefix of the lines for the parent; libraries may print other lines."""


def serve(build: Callable[[Path], Callable[[], dict[str, float] | None]]) -> None:
    """Runs in the child: a line with a folder builds the step of that case and runs it once; an empty line times the step.

    The values that a step returns are reported with its times.
    """
    step: Callable[[], dict[str, float] | None] | None = None
    for line in sys.stdin:
        if folder := line.strip():
            step = None  # frees its memory before the next is built
            step = build(Path(folder))
            step()
            _answer({})
            continue
        assert step is not None, "a turn before a case"
        wall, cpu = time.perf_counter(), time.process_time()
        found = step() or {}
        _answer({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu} | found)


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(value) + "\n")
    sys.stdout.flush()


class Side:
    """Runs in the parent: a program that serves turns. Raises `RuntimeError` with the end of its output if it dies."""

    def __init__(self, command: list[str], *, num_threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "passive"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self._name = Path(command[1]).name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def begin(self, folder: Path) -> None:
        """Has the child build the step of the case in `folder` and run it once."""
        self._ask(str(folder))

    def turn(self) -> dict[str, float]:
        """Wall time (`wall`) and CPU time (`cpu`) of one step in seconds, with the values that the step returns."""
        return self._ask("")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # reading then finds the end and reports why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self._errors.seek(0)
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}:\n{self._errors.read()[-3000:]}")

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
