"""The passages of a corpus: a JSONL file that is read in place by line number and identified by its checksum."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vime.data.file_formats import COMPRESSIONS, ENCODINGS, HEAD_BYTES, PARQUET, why_no_rows
from vime.errors import ConfigError, Problem

ReportProgress = Callable[[str, int, int], None]
"""`progress(phase, done, total)`: the current phase, the passages done in it, and their total number."""
KEY = "retrieval.corpus"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One passage. Example: `Document(id="17", title="Ada Lovelace", text="Ada Lovelace wrote the first program.")`."""

    id: str
    title: str
    text: str

    @property
    def searched(self) -> str:
        """The text that is indexed."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    def as_json(self) -> dict[str, str]:
        """The fields by name, for JSON."""
        return asdict(self)


class Corpus:
    """The passages of a file by position; several threads may read at the same time."""

    def __init__(self, path: Path, offsets: "np.ndarray") -> None:
        """`offsets` [passages + 1] holds the start of each line in bytes, and the end of the last one."""
        self.path, self.offsets = path, offsets
        self._file = path.open("rb")

    @classmethod
    def scan(cls, path: Path) -> "Corpus":
        """Finds the lines of a file. Raises ConfigError if the file does not exist or is empty."""
        if not path.is_file():
            remedy = "there is no such file: use a JSONL file of passages (fields id, title, text)"
            raise ConfigError([Problem(key=KEY, value=path, remedy=remedy)])
        if reason := _not_lines(path):
            raise ConfigError([Problem(key=KEY, value=path, remedy=f"the file {reason}")])
        offsets, position = [0], 0
        with path.open("rb") as file:
            for line in file:
                position += len(line)
                if line.strip():
                    offsets.append(position)
                else:
                    offsets[-1] = position  # an empty line is skipped
        if len(offsets) == 1:
            raise ConfigError([Problem(key=KEY, value=path, remedy="the file is empty: write one passage per line")])
        return cls(path, np.asarray(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Document:
        """The passage at a position. Raises ConfigError, naming the line, if it is not a passage."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        return read_line(os.pread(self._file.fileno(), stop - start, start), path=self.path, number=index + 1)

    def batches(self, size: int) -> Iterator[list[str]]:
        """The texts to index, `size` at a time, in order."""
        for start in range(0, len(self), size):
            yield [self[index].searched for index in range(start, min(start + size, len(self)))]

    def check_ids(self, progress: ReportProgress) -> None:
        """Reads all passages. Raises ConfigError for a line that is not a passage, and for a repeated id."""
        seen: set[str] = set()
        for index in range(len(self)):
            document = self[index]
            if document.id in seen:
                remedy = f"passage {index + 1} has the id {document.id} of another: give each passage an id of its own"
                raise ConfigError([Problem(key=KEY, value=self.path, remedy=remedy)])
            seen.add(document.id)
            if index % 1000 == 999 or index + 1 == len(self):
                progress("reading", index + 1, len(self))


def _not_lines(path: Path) -> str:
    """The reason why a file is not a text whose lines can be read in place, "" if it may be one."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if any(head.startswith(mark) for mark in COMPRESSIONS):
        return "is compressed: unpack it, as passages are read in place"
    if head.startswith((PARQUET, *ENCODINGS)):
        return "is Parquet, or no UTF-8: write its passages as JSON lines in UTF-8"
    return why_no_rows(head) if head else ""


def read_line(line: bytes, *, path: Path, number: int) -> Document:
    """The passage of a line `{"id", "title", "text"}`, or `{"id", "contents"}` with the title as first line of the contents."""
    try:
        row = json.loads(line)
        if "contents" in row and "text" not in row:
            title, _, text = str(row["contents"]).partition("\n")
            return Document(id=str(row["id"]), title=title.strip().strip('"'), text=text or title)
        return Document(id=str(row["id"]), title=str(row.get("title") or ""), text=str(row["text"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        remedy = f'passage {number} cannot be read ({error!r}): write {{"id": …, "title": …, "text": …}} on every line'
        raise ConfigError([Problem(key=KEY, value=path, remedy=remedy)]) from None


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
