"""Checks an answer to the Game of 24: the expression must use each number exactly once and have the value 24.

The expression is parsed and computed with fractions; nothing is executed.
"""

import re
from collections import Counter

from vime.grading.arithmetic import MAX_CHARACTERS, computed

_TARGET = 24
_SIGNS = {
    "×": "*",
    "·": "*",
    "÷": "/",
    "\u2212": "-",
    "\u2013": "-",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\left": "",
    "\\right": "",
}
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_LIST = re.compile(r"\[\s*\d{1,4}(?:\s*,\s*\d{1,4})*\s*\]")


def solves(prediction: str, numbers: list[int]) -> bool:
    """Returns True if `prediction` has the value 24 and uses each entry of `numbers` exactly once.

    Example: `solves("(1+1+1)×8 = 24", [1, 1, 1, 8])`. Allowed are + - × ÷ (also `*`, `/` and LaTeX's names), parentheses and a
    trailing `= 24`.
    """
    text = plain(prediction)
    if text is None:
        return False
    try:
        value, used = computed(text, integers=True)
    except ValueError:
        return False
    return value == _TARGET and Counter(used) == Counter(numbers)


def numbers_of(question: str, gold: list[str]) -> list[int]:
    """The numbers of a puzzle: the first list in the question, else those of the reference solution; empty without either."""
    if match := _LIST.search(question[:5_000]):
        return [int(digits) for digits in re.findall(r"\d+", match.group())]
    return [int(digits) for digits in re.findall(r"\d+", gold[0][:MAX_CHARACTERS].partition("=")[0])] if gold else []


def plain(expression: str) -> str | None:
    """The expression with Python's operators and without `= 24`; None if it is too long or equals another number."""
    if len(expression) > MAX_CHARACTERS:
        return None
    text = expression.strip().strip("$`").replace("\\(", "(").replace("\\)", ")")
    while match := _FRACTION.search(text):
        text = f"{text[: match.start()]}(({match.group(1)})/({match.group(2)})){text[match.end() :]}"
    for sign, python in _SIGNS.items():
        text = text.replace(sign, python)
    left, equals, right = text.partition("=")
    return None if equals and right.strip().rstrip(".$") != str(_TARGET) else left.strip()
