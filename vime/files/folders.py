"""Folders that appear only when complete: written beside their place, renamed into it, and tidied up after a crash."""

import os
import shutil
from pathlib import Path

WRITING, REPLACED, REMOVED = ".writing_", ".replaced_", ".removed_"


def writing_place(folder: Path) -> Path:
    """The place where the content of `folder` is written until it is complete."""
    return folder.with_name(f"{WRITING}{folder.name}")


def put_in_place(temporary: Path, folder: Path) -> None:
    """Renames a complete folder to its name. An existing one of this name gives way, and is lost only once the new one is
    there."""
    replaced = folder.with_name(f"{REPLACED}{folder.name}")
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    temporary.rename(folder)
    sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove(folder: Path) -> None:
    """Deletes a folder that others may look at: its name is gone before its files are."""
    removed = folder.with_name(f"{REMOVED}{folder.name}")
    folder.rename(removed)
    shutil.rmtree(removed)


def tidy(parent: Path) -> None:
    """Removes the remains of a crash below `parent`: unfinished folders go, one that was being replaced comes back."""
    for replaced in parent.glob(f"{REPLACED}*"):
        folder = replaced.with_name(replaced.name.removeprefix(REPLACED))
        if not folder.exists():
            replaced.rename(folder)
    for pattern in (WRITING, REPLACED, REMOVED):
        for left in parent.glob(f"{pattern}*"):
            shutil.rmtree(left)


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
