"""JSON-lines files that survive a crash: a torn last line is cut off, a whole file is replaced in one step."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vime.files.serialization import readable, to_json


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Appends one row and hands it to the operating system before returning."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False, default=readable) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file, an empty list if there is none; a last line that a crash tore is left out, not touched."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line.strip()]


def cut_torn_line(path: Path) -> None:
    """Removes a last line without its line break, so that the next row starts on a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end != len(data):
        os.truncate(path, end)


def write_lines(path: Path, rows: Iterable[dict[str, Any]], *, compact: bool = False) -> None:
    """Replaces a file by `rows`: readers see the old file or the new one, never half. Rows may be made as they are written.

    Columns in them are lists, or if they are to be `compact` the text that `Column.from_text` reads.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        for row in rows:
            file.write(to_json(row, compact=compact) + b"\n")
    os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Replaces a file by `text` in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
