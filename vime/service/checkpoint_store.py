"""Checkpoints of a service on disk, by their names in the Tinker API: `tinker://MODEL/weights/NAME`, `…/sampler_weights/NAME`."""

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vime.errors import BadRequestError
from vime.files import folders
from vime.service.training_service import SPEC

SCHEME = "tinker://"
TRAINING, SAMPLER = "weights", "sampler_weights"
KINDS = {TRAINING: "training", SAMPLER: "sampler"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,127}")
META = "checkpoint.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that was saved.

    Example: `Checkpoint(model="3f2a:train:0", kind="weights", name="0010", owner="9c…", saved_at=1764230400.0)`.
    """

    model: str
    kind: str
    name: str
    owner: str
    saved_at: float
    expires_at: float | None = None
    metadata: dict[str, str] | None = field(default=None)
    call: str = ""
    """The call that has saved it."""

    @property
    def path(self) -> str:
        """Its name in the API."""
        return f"{SCHEME}{self.model}/{self.kind}/{self.name}"


class Store:
    """The checkpoints below a folder. Each owner sees its own alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tidy(self) -> None:
        """Removes what a service that was killed has written in part."""
        for folder in self._folder.glob("*/*"):
            folders.tidy(folder)

    def place(self, model: str, kind: str, name: str) -> Path:
        """The folder of a checkpoint, there or not. Raises BadRequestError for a name that is none."""
        for part in (model, name):
            if not NAME.fullmatch(part):
                raise BadRequestError(f"{part!r} is no name of a checkpoint: use letters, digits and _ . : @ + -")
        return self._folder / model / kind / name

    def find(self, path: str, *, owner: str) -> tuple[Checkpoint, Path]:
        """A checkpoint by its name in the API. Raises BadRequestError if this owner has none of it."""
        parts = path.removeprefix(SCHEME).split("/")
        if path.startswith(SCHEME) and len(parts) == 3 and parts[1] in KINDS:
            folder = self.place(*parts)
            if (found := read(folder)) is not None and found.owner == owner:
                return found, folder
        raise BadRequestError(f"there is no checkpoint {path}")

    def all(self, *, owner: str, model: str | None = None) -> list[tuple[Checkpoint, Path]]:
        """An owner's checkpoints, oldest first, or those of one model."""
        found = [each for each in self._every() if each[0].owner == owner and model in (None, each[0].model)]
        return sorted(found, key=lambda each: each[0].saved_at)

    def remove(self, path: str, *, owner: str) -> None:
        """Removes a checkpoint. Raises BadRequestError if this owner has none of it."""
        folders.remove(self.find(path, owner=owner)[1])

    def remove_expired(self) -> dict[str, list[Checkpoint]]:
        """Removes the checkpoints whose time is over; returns the others of all owners by model, oldest first."""
        kept = defaultdict[str, list[Checkpoint]](list)
        for checkpoint, folder in sorted(self._every(), key=lambda each: each[0].saved_at):
            if checkpoint.expires_at is not None and checkpoint.expires_at < time.time():
                folders.remove(folder)
            else:
                kept[checkpoint.model].append(checkpoint)
        return kept

    def _every(self) -> Iterator[tuple[Checkpoint, Path]]:
        for file in self._folder.glob(f"*/*/*/{META}"):
            is_whole = not file.parent.name.startswith(".")  # others are being written or removed
            if is_whole and (found := read(file.parent)) is not None:
                yield found, file.parent


def file_of(checkpoint: Checkpoint) -> dict[str, str]:
    """The file by which a folder is a checkpoint: its name and its text."""
    return {META: json.dumps(asdict(checkpoint)) + "\n"}


def read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none."""
    try:
        return Checkpoint(**json.loads((folder / META).read_text()))
    except FileNotFoundError:  # or it was removed meanwhile
        return None


def spec_of(folder: Path) -> dict[str, Any]:
    """The properties of a checkpoint's model, as its folder has them."""
    return json.loads((folder / SPEC).read_text())


def num_bytes(folder: Path) -> int:
    """The size of a checkpoint; 0 if it is being removed."""
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except FileNotFoundError:
        return 0
