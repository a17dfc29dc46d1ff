"""Compares mathematical answers: as plain numbers here, and all others in a process that can be killed (`maths_worker.py`)."""

import re
from enum import Enum
from fractions import Fraction
from functools import lru_cache

from vime.grading.number import TOLERANCE, number
from vime.grading.worker_processes import WorkerProcesses

SECONDS = 6.0
"""Time limit of one comparison; some formulas, like towers of powers, would take forever."""
MAX_CHARACTERS, MAX_DEPTH = 500, 20
"""Answers and references that are longer or nested deeper are not parsed."""
_BARE = re.compile(r"[0-9.,+/eE-]+")
"""Characters of numbers without units."""


class Equality(Enum):
    """The result of a rule: equal, different, undecided, or stopped at its limit."""

    equal = "equal"
    different = "different"
    undecided = "undecided"
    limit = "limit"


async def equal(answer: str, gold: list[str], *, digits: int | None = None) -> Equality:
    """Compares an answer (the content of its box) with the references; undecided if it or a reference is not a formula.

    With `digits` numbers are equal if they agree when rounded to that number of significant digits.
    """
    short = [reference for reference in gold if _is_simple(reference)]
    if answer.strip() and answer.strip() in [reference.strip() for reference in gold]:
        return Equality.equal
    if not _is_simple(answer) or not short:
        return Equality.limit
    if digits is None and all(map(_BARE.fullmatch, (answer, *short))):
        value, *values = map(number, (answer, *short))
        if value is not None and None not in values:
            is_decimal = any(sign in text for text in (answer, *short) for sign in ".eE")
            same = any(_equal_numbers(value, one, is_decimal=is_decimal) for one in values if one is not None)
            return Equality.equal if same else Equality.different
    request = {"answer": answer, "gold": short, "digits": digits}
    return Equality(await _workers().call(request, seconds=SECONDS) or "limit")


def _equal_numbers(one: Fraction, other: Fraction, *, is_decimal: bool) -> bool:
    return one == other or (is_decimal and abs(one - other) <= TOLERANCE * max(abs(one), abs(other)))


def _is_simple(text: str) -> bool:
    if len(text) > MAX_CHARACTERS:
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH


@lru_cache(maxsize=1)
def _workers() -> WorkerProcesses:
    return WorkerProcesses("vime.grading.maths_worker", num_workers=2)
