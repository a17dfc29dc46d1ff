"""Compares mathematical answers: as strings, as exact numbers, and then with math-verify in a process that can be killed."""

from enum import Enum
from functools import lru_cache

from vime.grading.boxed import strip_string
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


async def equal(answer: str, gold: list[str]) -> Equality:
    """Compares an answer (the content of its box) with the references; undecided if it or a reference is no formula."""
    short = [reference for reference in gold if _is_simple(reference)]
    if any(strip_string(answer) == strip_string(reference) and _is_as_percent(answer, reference) for reference in gold):
        return Equality.equal
    if not _is_simple(answer) or not short:
        return Equality.limit
    value, values = number(answer), [number(reference) for reference in short]
    if value is not None and value in values:
        return Equality.equal
    if value is not None and None not in values:
        return Equality.different
    return Equality(await _workers().call({"answer": answer, "gold": short}, seconds=SECONDS) or "limit")


def _is_as_percent(answer: str, reference: str) -> bool:
    """Whether the percent signs match: a reference in percent accepts the bare number, but ten is not ten percent."""
    return "%" not in answer or "%" in reference


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
