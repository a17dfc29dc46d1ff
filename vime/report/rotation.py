"""Files of a run that would grow as long as it lasts: the oldest are removed so that all together keep a size."""

from collections.abc import Sequence
from pathlib import Path


def keep_newest(files: Sequence[Path], *, max_bytes: int) -> None:
    """Removes the first of the files, the oldest, until the others fit; the last one stays in any case."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    for file, size in zip(files[:-1], sizes):
        if total <= max_bytes:
            break
        file.unlink(missing_ok=True)
        total -= size
