"""Reads a file of rows in its own format: JSON (a list, or one object a line), CSV, TSV or Parquet, compressed or not.

The ending, in any case, names the kind; compression, Parquet and the encoding of a text are known by the first bytes. Cells of
CSV are texts, as nothing says which of them are numbers.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from backports import zstd

from vime.errors import ConfigError, Problem, describe

Row = dict[str, Any]
COMPRESSIONS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": zstd.open,
}
"""Openers of files that begin with these bytes."""
COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
NOT_ROWS = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`",
    b"PK\x03\x04": "is a zip archive: unpack it, and use a file inside",
    b"\x89HDF": "is HDF5: write its rows as JSON lines",
    b"ARROW1": "is an Arrow file: write its rows as Parquet or JSON lines",
}
"""The reason why files that begin with these bytes are refused."""
PARQUET = b"PAR1"
ENCODINGS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16"} | {
    codecs.BOM_UTF16_BE: "utf-16"
}
"""Encodings of texts that begin with these marks; all others are UTF-8, with or without its mark."""
HEAD_BYTES = 32
PARQUET_ROWS = 1000


class UnreadableError(ValueError):
    """A file holds no rows: where in the file ("" for all of it), and a reason that goes on from the file's name."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason


def kind_of(path: str) -> str | None:
    """The ending that says how rows are read, without that of a compression, in small letters; None if it is none of `KINDS`."""
    endings = PurePath(path.lower()).suffixes
    if endings and endings[-1] in COMPRESSED_ENDINGS:
        endings = endings[:-1]
    return endings[-1] if endings and endings[-1] in KINDS else None


def read_rows(file: Path, *, key: str) -> Iterator[Row]:
    """The rows of a file, one after another.

    Raises `ConfigError` for `key`, naming the file and where possible the line, if it is not a file, or not a file of rows.
    """
    try:
        yield from _rows(file)
    except UnreadableError as error:
        where = f"{error.where} of {file.name}" if error.where else file.name
        raise ConfigError([Problem(key=key, value=str(file), remedy=f"{where} {error.reason}")]) from error
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        remedy = f"{file.name} cannot be read ({describe(error)}): it may be damaged or incomplete, use a whole copy"
        raise ConfigError([Problem(key=key, value=str(file), remedy=remedy)]) from error


def why_no_rows(head: bytes) -> str:
    """The reason why a file with these first bytes is neither text nor Parquet, "" if it may be one of them."""
    return "is empty" if not head else next((reason for mark, reason in NOT_ROWS.items() if head.startswith(mark)), "")


def _rows(file: Path) -> Iterator[Row]:
    kind = kind_of(file.name)
    if file.exists() and not file.is_file():
        raise UnreadableError("", f"is a {'folder' if file.is_dir() else 'device or pipe'}: use a file")
    if kind is None:
        raise UnreadableError("", f"has an ending that says nothing of its kind: use one of {ENDINGS}")
    with file.open("rb") as plain:
        head = plain.read(HEAD_BYTES)
    opened = next((opener for mark, opener in COMPRESSIONS.items() if head.startswith(mark)), open)
    with io.BufferedReader(cast(io.RawIOBase, opened(file, "rb"))) as content:
        head = content.peek(HEAD_BYTES)[:HEAD_BYTES]
        if reason := why_no_rows(head):
            raise UnreadableError("", reason)
        yield from (_parquet if head.startswith(PARQUET) else KINDS[kind])(content)


def _parquet(content: BinaryIO) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(content)
        _refuse_twice(file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        reason = f"cannot be read as Parquet ({describe(error).splitlines()[0]}): it may be incomplete or of another kind, "
        raise UnreadableError("", reason + "use a whole copy") from error


def _json(content: BinaryIO) -> Iterator[Row]:
    lines = _lines(content)
    blank = ""
    for first in lines:
        if first.strip():
            break
        blank += first
    else:
        return
    if first.lstrip().startswith("["):
        entries = _parsed("".join([blank, first, *lines]), first_line=1)
        yield from (_object(entry, f"entry {number}") for number, entry in enumerate(entries, start=1))
        return
    for number, line in enumerate(chain([first], lines), start=blank.count("\n") + 1):
        if line.strip():
            yield _object(_parsed(line.rstrip("\n"), first_line=number), f"line {number}")


def _parsed(text: str, *, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {first_line + error.lineno - 1}"
        raise UnreadableError(where, f"is no JSON: {error.msg} at column {error.colno}; {_LAYOUTS}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise UnreadableError(f"line {first_line}", f"is no JSON that can be read: {describe(error)}") from error


def _object(found: Any, where: str) -> Row:
    if not isinstance(found, dict):
        raise UnreadableError(where, f"is no object but a {type(found).__name__}; {_LAYOUTS}")
    return found


def _table(delimiter: str) -> Callable[[BinaryIO], Iterator[Row]]:
    def rows(content: BinaryIO) -> Iterator[Row]:
        csv.field_size_limit(sys.maxsize)
        reader = csv.reader(_lines(content, newline=""), delimiter=delimiter, strict=True)
        try:
            names = next(reader, [])
            _refuse_twice(names)
            for cells in reader:
                if cells and len(cells) != len(names):
                    reason = f"has {len(cells)} cells for the {len(names)} columns of the first line: quote texts that hold "
                    raise UnreadableError(f"line {reader.line_num}", f"{reason}{delimiter!r} or line breaks")
                if cells:
                    yield dict(zip(names, cells))
        except csv.Error as error:
            kind = "CSV" if delimiter == "," else "TSV"
            raise UnreadableError(f"line {reader.line_num}", f"is no {kind}: {error}; check its quotes") from error

    return rows


def _refuse_twice(names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnreadableError("", f"has several columns named {', '.join(map(repr, twice))}: give each a name of its own")


def _lines(content: BinaryIO, *, newline: str | None = None) -> Iterator[str]:
    """The lines of a text, which end at line feeds and carriage returns only."""
    head = cast(io.BufferedReader, content).peek(HEAD_BYTES)
    encoding = next((name for mark, name in ENCODINGS.items() if head.startswith(mark)), "utf-8-sig")
    for number, line in enumerate(io.TextIOWrapper(content, encoding, errors="surrogateescape", newline=newline), start=1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            name = encoding.removesuffix("-sig").upper()
            raise UnreadableError(f"line {number}", f"is no {name}: save the file as UTF-8") from error
        yield line


_LAYOUTS = "write one object a line, or a list of objects"
_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
KINDS: dict[str, Callable[[BinaryIO], Iterator[Row]]] = dict.fromkeys(_JSON_ENDINGS, _json) | {
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
}
ENDINGS = f"{', '.join(KINDS)}, also compressed ({', '.join(COMPRESSED_ENDINGS)})"
