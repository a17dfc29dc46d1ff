"""Reads plain numbers exactly: integers, decimals, fractions, percentages and powers of ten, with common signs around them."""

import re
from fractions import Fraction

MAX_CHARACTERS = 100
TOLERANCE = Fraction(1, 10**9)
"""Relative difference below which numbers are equal if one of them is written with decimals."""
_BETWEEN = r"(?:,|\{,\}|\\,|,\\!|\\!|\\ |~|\u2009|\u00a0)"
"""Separators of groups of three digits."""
_DIGITS = rf"(?:[0-9]{{1,3}}(?:{_BETWEEN}[0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
_NUMBER = re.compile(
    rf"(?:\\?\$|€)?\s*([+-]?)\s*(?:\\?\$|€)?\s*"
    rf"(?:({_DIGITS})(?:[eE]([+-]?[0-9]{{1,3}})|/([0-9]+))?|\\[dt]?frac\{{([0-9]+)\}}\{{([0-9]+)\}})"
    r"\s*(?:(\\?%)|\^?\{?\\circ\}?|°)?\.?"
)


def number(text: str) -> Fraction | None:
    """The exact value of a plain number, or None if the text is anything else.

    Example: `number("1,234.50")` is 2469/2, `number("\\\\frac{1}{2}")` 1/2, `number("10\\\\%")` 1/10, `number("1e3")` 1000,
    `number("x=3")` None.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    bare = text.replace("\u2212", "-").strip()
    if len(bare) > 1 and bare[0] == bare[-1] == "$":
        bare = bare.strip("$").strip()
    match = _NUMBER.fullmatch(bare)
    if not match:
        return None
    sign, digits, exponent, below, top, bottom, percent = match.groups()
    divisor = int(bottom or below or 1)
    if divisor == 0:
        return None
    value = Fraction(re.sub(r"[^0-9.]", "", digits or top)) * Fraction(10) ** int(exponent or 0) / divisor
    return (-value if sign == "-" else value) / (100 if percent else 1)
