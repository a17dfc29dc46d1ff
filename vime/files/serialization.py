"""JSON at the size of token lists: orjson is about a hundred times as fast as the standard library on them.

What orjson refuses (integers beyond 64 bits, lone surrogates in a row's text) goes through the standard library.
"""

import json
from collections.abc import Iterator
from typing import Any

import orjson

from vime.types.column import Column

OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def to_json(data: Any, *, compact: bool = False) -> bytes:
    """One line of JSON without its line break; other types become their `str`, numbers that are not finite become null.

    Columns become lists, or with `compact` the text that `Column.from_text` reads.
    """
    default = _compact if compact else readable
    try:
        return orjson.dumps(data, default=default, option=OPTIONS)
    except TypeError:
        return json.dumps(data, default=default).encode()


def json_pieces(data: Any, *, depth: int) -> Iterator[bytes]:
    """`to_json(data, compact=True)` in pieces: dictionaries down to `depth` are split, so that no piece holds all the data.

    A thread that writes the pieces lets other threads work between two of them.
    """
    if not depth or not isinstance(data, dict) or not all(type(key) is str for key in data):
        yield to_json(data, compact=True)
        return
    yield b"{"
    for number, (key, value) in enumerate(data.items()):
        yield (b"," if number else b"") + to_json(key) + b":"
        yield from json_pieces(value, depth=depth - 1)
    yield b"}"


def from_json(data: bytes) -> Any:
    """Reads what `to_json` wrote. Raises ValueError if it is torn."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def readable(value: Any) -> Any:
    """The substitute for a value that JSON does not know: a list for a column, for all else its `str`."""
    return list(value) if isinstance(value, Column) else str(value)


def _compact(value: Any) -> str:
    return value.to_text() if isinstance(value, Column) else str(value)
