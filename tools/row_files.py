"""Reads the rows of a data set from files of the usual kinds."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class PreparationError(Exception):
    """A data set cannot be prepared; the message says why, with the remedy."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file. Raises `PreparationError` if its ending is unknown."""
    if path.suffix not in READERS:
        raise PreparationError(f"{path}: give one of {', '.join(READERS)}")
    return READERS[path.suffix](path)


def _read_json(path: Path) -> Iterator[dict[str, Any]]:
    return iter(json.loads(path.read_text(encoding="utf-8")))


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1000):
        yield from batch.to_pylist()


def _read_numbered(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a class's number and a sentence; a line that is not UTF-8 is Latin-1."""
    for line in path.read_bytes().splitlines():
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode("latin-1")
        number, _, sentence = text.strip().partition(" ")
        yield {"class": int(number), "question": sentence}


NUMBERED = (".all", ".train", ".dev", ".test")
"""Endings of files whose lines are a class's number and a sentence."""
READERS = {".json": _read_json, ".jsonl": _read_jsonl, ".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet}
READERS |= dict.fromkeys(NUMBERED, _read_numbered)
