"""Ranges of numbers, written on the fields of the configuration as part of their type.

    num_prompts: Count = 16
    clip_high: NonNegative = 0.2
    dual_clip: Annotated[float, Range(above=1)] | None = None

OmegaConf, dataclasses and pyright see the plain type. `numbers_of` walks a configuration and pairs every number with its
range, for the one rule that checks all of them; `range_in` is the range of a single type, which `--help` shows.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Bounds of a number; `above` and `below` are exclusive. Example: `Range(above=0)` for a learning rate."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    why: str = ""
    """The reason for these bounds, or for having none, where it is not obvious. Error messages print this text after the
    range."""

    def __post_init__(self) -> None:
        assert self.why or self.bounds, "a range without bounds says why there are none"

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, keyed by their wording, in reading order."""
        words = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
        return {word: bound for word, bound in words.items() if bound is not None}

    def __str__(self) -> str:
        """The range in words. Examples: `at least 1`, `from 0 to 1`, `more than 0 and at most 1`, `a finite number`."""
        if self.least is not None and self.least == self.most:
            return _written(self.least)
        if self.bounds.keys() == {"at least", "at most"}:
            return f"from {_written(self.least)} to {_written(self.most)}"
        return " and ".join(f"{word} {_written(bound)}" for word, bound in self.bounds.items()) or "a finite number"

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


Count = Annotated[int, Range(least=1)]
Natural = Annotated[int, Range(least=0)]
Port = Annotated[int, Range(least=0, most=65535)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
PositiveShare = Annotated[float, Range(above=0, most=1)]


def numbers_of(config: Any, prefix: str = "") -> Iterator[tuple[str, float, Range]]:
    """Key, value and range of every number in a tree of dataclasses, including its lists and dictionaries; null is skipped.

    Example: `("rollout.num_prompts", 16, Range(least=1))`.
    """
    for name, allowed in ranges_of(type(config)).items():
        yield from _numbers_in(getattr(config, name), allowed, f"{prefix}{name}")


@cache
def ranges_of(schema: type) -> dict[str, Range | None]:
    """The range of every field of a dataclass, None for a field without one."""
    return {name: range_in(hint) for name, hint in get_type_hints(schema, include_extras=True).items()}


def range_in(hint: Any) -> Range | None:
    """The range in a type, including one inside a list, a dictionary or an optional type; None if there is none."""
    found = (part if isinstance(part, Range) else range_in(part) for part in get_args(hint))
    return next((part for part in found if part is not None), None)


def _numbers_in(value: Any, allowed: Range | None, key: str) -> Iterator[tuple[str, float, Range]]:
    if dataclasses.is_dataclass(value):
        yield from numbers_of(value, f"{key}.")
    elif isinstance(value, (list, dict)):
        for name, entry in enumerate(value) if isinstance(value, list) else value.items():
            yield from _numbers_in(entry, allowed, f"{key}.{name}")
    elif allowed is not None and value is not None:
        yield key, value, allowed


def _written(number: float | None) -> str:
    assert number is not None
    return str(number) if isinstance(number, int) else f"{number:g}"
