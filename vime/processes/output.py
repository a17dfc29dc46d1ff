"""Sends what a process of Ray writes to a file of the run folder: its stdout, its stderr and its log records.

Ray keeps them in a temporary folder that is removed with the run.
"""

import io
import logging
import os
import sys
from pathlib import Path
from typing import Any

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
logger = logging.getLogger(__name__)


class LogFile(io.FileIO):
    """A file whose writer does not fail if the disk is full: that costs lines of the log."""

    def write(self, data: Any, /) -> int:
        """Writes what can be written, and says that all of it was."""
        try:
            super().write(data)
        except OSError:  # there is nowhere left to say so
            pass
        return memoryview(data).nbytes


def send_output_to(path: Path) -> None:
    """From now on this process writes to the end of a file, also what libraries in C and programs that it starts write."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:  # a node that does not see the run folder
        logger.warning("the output of this process is not kept: %s", error)
        return
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout, sys.stderr = _text(1), _text(2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(min(root.level or logging.INFO, logging.INFO))


def _text(number: int) -> io.TextIOWrapper:
    binary: Any = io.BufferedWriter(LogFile(number, "w", closefd=False))
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", line_buffering=True)
