"""Writes items as JSON lines, part by part, so that documents of any length can be written.

A document is stored in its row as `context`, or in a file of its own that the row names as `context_file`; rows then stay small,
and workers read one document at a time.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from agentic.memagent.ruler.item import Item, Task


def write_rows(
    path: Path, task: Task, *, size: int, num_items: int, own_files: bool, on_item: Callable[[], None] = lambda: None
) -> None:
    """Writes `num_items` items of one size to `path`, which appears only when it is complete."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        for index in range(num_items):
            item = task(index, size)
            row = json.dumps(item.row(), ensure_ascii=False)
            if own_files:
                folder = path.with_suffix(".documents")
                folder.mkdir(exist_ok=True)
                document = folder / f"{index:06d}.txt"
                about = {"context_file": f"{folder.name}/{document.name}", "context_sha256": write_document(document, item)}
                file.write(f"{row[:-1]}, {json.dumps(about)[1:]}\n")
            else:
                file.write(f'{row[:-1]}, "context": "')
                for part in item.parts:
                    file.write(json.dumps(part, ensure_ascii=False)[1:-1])
                file.write('"}\n')
            on_item()
    temporary.replace(path)


def write_document(path: Path, item: Item) -> str:
    """Writes an item's document and returns its SHA-256."""
    digest = hashlib.sha256()
    with path.open("w", encoding="utf-8", newline="") as file:
        for part in item.parts:
            file.write(part)
            digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
