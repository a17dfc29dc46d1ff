"""Reads the rows of a data set from files of the usual kinds, and from those of numbered classes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime.data import file_formats
from vime.errors import ConfigError

NUMBERED = (".all", ".train", ".dev", ".test")
"""Endings of files whose lines are a class's number and a sentence."""


class PreparationError(Exception):
    """A data set cannot be prepared; the message says why, with the remedy."""


def holds_rows(path: str | Path) -> bool:
    """True if rows can be read from a file of this name."""
    return Path(path).suffix in NUMBERED or file_formats.kind_of(str(path)) is not None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file. Raises `PreparationError` if it cannot be read as rows."""
    try:
        yield from _numbered(path) if path.suffix in NUMBERED else file_formats.read_rows(path, key="--from")
    except ConfigError as error:
        raise PreparationError(f"{path}: {'; '.join(problem.remedy for problem in error.problems)}") from error


def _numbered(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a class's number and a sentence; a line that is not UTF-8 is Latin-1."""
    for line in path.read_bytes().splitlines():
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode("latin-1")
        number, _, sentence = text.strip().partition(" ")
        yield {"class": int(number), "question": sentence}
