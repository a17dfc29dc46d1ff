"""JSON at the size of token lists: orjson is about a hundred times as fast as the standard library on them.

What orjson refuses (integers beyond 64 bits, lone surrogates in a row's text) goes through the standard library.
"""

import json
from typing import Any

import orjson

OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def to_json(data: Any) -> bytes:
    """One line of JSON without its line break; what JSON does not know becomes its `str`, a number that is not finite null."""
    try:
        return orjson.dumps(data, default=str, option=OPTIONS)
    except TypeError:
        return json.dumps(data, default=str).encode()


def from_json(data: bytes) -> Any:
    """Reads what `to_json` wrote. Raises ValueError if it is torn."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)
