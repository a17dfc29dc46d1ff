"""Limits the total size of files that grow as long as a run lasts, by removing the oldest."""

from collections.abc import Sequence
from pathlib import Path


def keep_newest(files: Sequence[Path], *, max_bytes: int) -> None:
    """Removes the oldest of `files`, which come first, until the rest take at most `max_bytes`; the last one is always kept."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    for file, size in zip(files[:-1], sizes):
        if total <= max_bytes:
            break
        file.unlink(missing_ok=True)
        total -= size
