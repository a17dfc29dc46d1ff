"""Mathematical answers by rule: as strings, as exact numbers, and then by math-verify in a process that can be killed."""

from enum import Enum
from functools import lru_cache

from vime.grading.boxed import strip_string
from vime.grading.number import number
from vime.grading.workers import Workers

SECONDS = 6.0
"""For one comparison; a tower of powers would take for ever."""
MAX_CHARACTERS = 500
"""Longer answers and references are not parsed: nobody's answer is so long."""


class Verdict(Enum):
    """What a rule found: the same, not the same, no way to tell, or no end within its limit."""

    equal = "equal"
    different = "different"
    undecided = "undecided"
    limit = "limit"


async def equal(answer: str, gold: list[str]) -> Verdict:
    """Whether an answer (the content of its box) equals one of the references; undecided if one of them is no mathematics."""
    short = [reference for reference in gold if len(reference) <= MAX_CHARACTERS]
    if strip_string(answer) in {strip_string(reference) for reference in gold}:
        return Verdict.equal
    if len(answer) > MAX_CHARACTERS or not short:
        return Verdict.limit
    value, values = number(answer), [number(reference) for reference in short]
    if value is not None and value in values:
        return Verdict.equal
    if value is not None and None not in values:
        return Verdict.different
    return Verdict(await _workers().call({"answer": answer, "gold": short}, seconds=SECONDS) or "limit")


@lru_cache(maxsize=1)
def _workers() -> Workers:
    return Workers("vime.grading.maths_worker", num_workers=2)
