"""Mathematical answers by rule: as strings, as exact numbers, and then by math-verify in a process that can be killed."""

from enum import Enum
from functools import lru_cache

from vime.grading.boxed import strip_string
from vime.grading.number import number
from vime.grading.workers import Workers

SECONDS = 6.0
"""For one comparison; a tower of powers would take for ever."""
MAX_CHARACTERS, MAX_DEPTH = 500, 20
"""Answers and references that are longer or nested deeper are not parsed: nobody's answer is so."""


class Verdict(Enum):
    """What a rule found: the same, not the same, no way to tell, or no end within its limit."""

    equal = "equal"
    different = "different"
    undecided = "undecided"
    limit = "limit"


async def equal(answer: str, gold: list[str]) -> Verdict:
    """Whether an answer (the content of its box) equals one of the references; undecided if one of them is no mathematics."""
    short = [reference for reference in gold if _is_simple(reference)]
    if any(strip_string(answer) == strip_string(reference) and _is_as_percent(answer, reference) for reference in gold):
        return Verdict.equal
    if not _is_simple(answer) or not short:
        return Verdict.limit
    value, values = number(answer), [number(reference) for reference in short]
    if value is not None and value in values:
        return Verdict.equal
    if value is not None and None not in values:
        return Verdict.different
    return Verdict(await _workers().call({"answer": answer, "gold": short}, seconds=SECONDS) or "limit")


def _is_as_percent(answer: str, reference: str) -> bool:
    """Whether a percent sign makes no difference: a reference in percent accepts the bare number, but ten is not ten percent."""
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
