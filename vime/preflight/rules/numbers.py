"""Every number lies in the range that its field names (`vime.config.ranges`)."""

import math
from typing import Any

from vime.config import RunConfig
from vime.config.ranges import numbers_of
from vime.errors import Problem


def ranges(config: RunConfig) -> list[Problem]:
    """Numbers outside the range of their field, in lists, in dictionaries and in the settings of the method too."""
    problems = []
    for key, value, allowed in numbers_of(config):
        if value not in allowed:
            remedy = f"must be {allowed}" if math.isfinite(value) or not allowed.bounds else f"must be a finite number, {allowed}"
            problems.append(Problem(key=key, value=value, remedy=f"{remedy}: {allowed.why}" if allowed.why else remedy))
    return problems


def must_divide(size: int, wholes: dict[str, int]) -> str | None:
    """The remedy for a size that does not divide all of `wholes`, which are settings: the uneven ones, and the sizes that fit."""
    uneven = [f"{key}={whole}" for key, whole in wholes.items() if whole % size]
    common = math.gcd(*wholes.values())
    fitting = [str(fit) for fit in range(1, common + 1) if common % fit == 0]
    return f"must divide {_listed(uneven, 'and')}: use {_listed(fitting, 'or')}" if uneven else None


def _listed(words: list[str], joint: str) -> str:
    return f"{', '.join(words[:-1])} {joint} {words[-1]}" if len(words) > 1 else words[0]


def value_at(config: object, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
