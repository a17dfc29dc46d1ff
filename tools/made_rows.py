"""Rows that prepare_data.py makes itself: other rows converted one by one, or a data set made from prepared ones.

An entry of datasets.yaml with `convert: module.function` has each row of its files passed through the function, which returns a
row, or None to leave it out. One with `made_from: [NAMES]` and `make: module.function` has the function called with the paths of
these prepared sets by name, the paths of those of `without` that are there, the folder, the set's name and its `options`; it
returns the rows.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from row_files import PreparationError, read_rows

from vime.hooks import load_hook

Row = dict[str, Any]
PLACE = re.compile(r"\bnumber(\d+)\b")
"""Place of a number in a problem of ASDiv-A, as the repository of SVAMP publishes it."""


def source_of(entry: dict[str, Any]) -> str:
    """The source of an entry's rows."""
    return entry.get("url") or entry.get("repository") or ", ".join(entry["made_from"])


def sources_of(name: str, entry: dict[str, Any], out: Path) -> dict[str, Path]:
    """The prepared sets from which a set is made. Raises `PreparationError`, with the command, if one is not there."""
    paths = {source: out / f"{source}.jsonl" for source in entry["made_from"]}
    if missing := [source for source, path in paths.items() if not path.is_file()]:
        command = f"python tools/prepare_data.py {' '.join(missing)} {name} --out {out}"
        raise PreparationError(
            f"{name} is made from {', '.join(entry['made_from'])}, and {', '.join(missing)} is not there: {command}"
        )
    return paths


def made(name: str, entry: dict[str, Any], out: Path) -> Iterable[Row]:
    """The rows of a set that is made from prepared ones. Raises `PreparationError` if these do not fit together."""
    without = {other: out / f"{other}.jsonl" for other in entry.get("without", []) if (out / f"{other}.jsonl").is_file()}
    options = {"without": without, "folder": out, "name": name, **entry.get("options", {})}
    try:
        return load_hook(entry["make"])(sources_of(name, entry, out), **options)
    except ValueError as error:
        raise PreparationError(f"{name} cannot be made from {source_of(entry)}: {error}") from error


def converted(files: Iterable[Path], entry: dict[str, Any]) -> Iterator[Row]:
    """The rows of files, converted where the entry says how; those that the function leaves out come as empty rows."""
    convert = load_hook(entry["convert"]) if "convert" in entry else None
    for path in files:
        for row in read_rows(path):
            yield row if convert is None else convert(row) or {}


def asdiv_row(published: Row) -> Row:
    """A row of ASDiv-A, and of its like, with the numbers of the problem in its text.

    `asdiv_row({"Question": "number0 and number1 ?", "Numbers": "7 2", "Answer": "9.0"})` is `{"question": "7 and 2 ?", "answer":
    "9"}`.
    """
    numbers = published["Numbers"].split()
    question = PLACE.sub(lambda found: numbers[int(found[1])], published["Question"])
    return {"question": question, "answer": published["Answer"].removesuffix(".0")}
