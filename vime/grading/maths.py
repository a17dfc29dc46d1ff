"""Compares mathematical answers: as plain numbers here, and all others in a process that can be killed (`maths_worker.py`)."""

from enum import Enum
from functools import lru_cache

from vime.grading.number import number
from vime.grading.workers import Workers

SECONDS = 6.0
"""Time limit of one comparison; some formulas, like towers of powers, would take forever."""
MAX_CHARACTERS, MAX_DEPTH = 500, 20
"""Answers and references that are longer or nested deeper are not parsed."""


class Equality(Enum):
    """The result of a rule: equal, different, undecided, or stopped at its limit."""

    equal = "equal"
    different = "different"
    undecided = "undecided"
    limit = "limit"


async def equal(answer: str, gold: list[str], *, digits: int | None = None) -> Equality:
    """Compares an answer (the content of its box) with the references; undecided if it or a reference is no formula.

    With `digits` numbers are equal if they agree when rounded to so many significant digits.
    """
    short = [reference for reference in gold if _is_simple(reference)]
    if answer.strip() and answer.strip() in [reference.strip() for reference in gold]:
        return Equality.equal
    if not _is_simple(answer) or not short:
        return Equality.limit
    value, values = number(answer), [number(reference) for reference in short]
    if value is not None and value in values:
        return Equality.equal
    if value is not None and None not in values and digits is None and not any(map(_is_decimal, (answer, *short))):
        return Equality.different
    request = {"answer": answer, "gold": short, "digits": digits}
    return Equality(await _workers().call(request, seconds=SECONDS) or "limit")


def _is_decimal(text: str) -> bool:
    """Whether a plain number is written with decimals, or in percent, for which the bare number stands as well."""
    return any(sign in text for sign in ".eE%")


def _is_simple(text: str) -> bool:
    if len(text) > MAX_CHARACTERS:
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH


@lru_cache(maxsize=1)
def _workers() -> Workers:
    return Workers("vime.grading.maths_worker", num_workers=2)
