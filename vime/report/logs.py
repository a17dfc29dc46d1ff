"""Destinations of the driver's log records: warnings to the console, everything from INFO on to `logs/driver.log`."""

import logging
from collections.abc import Callable
from pathlib import Path


class ConsoleHandler(logging.Handler):
    """Hands warnings and errors to `show` as one line of text."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(level=logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one record."""
        self._show(f"{record.name}: {record.getMessage()}")


def log_to_file(path: Path) -> logging.Handler:
    """Adds the file to the root logger and returns its handler, to be removed by the caller."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    if root.getEffectiveLevel() > logging.INFO:
        root.setLevel(logging.INFO)
    return handler
