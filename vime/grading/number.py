"""Reads plain numbers exactly: integers, decimals, fractions and percentages, with common signs around them."""

import re
from fractions import Fraction

MAX_CHARACTERS = 100
_SIGNS = ("\\$", "$", "€", "\\,", "\\!", "\\ ", "~", "{,}", "\u2009", "\u00a0")
_FRACTION = re.compile(r"^([+-]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}$")
_THOUSANDS = re.compile(r"^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:/\d+)?$")
_ENDS = re.compile(r"(?:\.|\^?\{?\\circ\}?|°)$")


def number(text: str) -> Fraction | None:
    """The exact value of a plain number, or None if the text is anything else.

    Example: `number("1,234.50")` is 2469/2, `number("\\\\frac{1}{2}")` 1/2, `number("10\\\\%")` 1/10, `number("x=3")` None.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    for sign in _SIGNS:
        text = text.replace(sign, "")
    text = text.replace("\u2212", "-").strip()
    if match := _FRACTION.match(text):
        text = f"{match.group(1)}{match.group(2)}/{match.group(3)}"
    percent = text.endswith("%")
    text = text.removesuffix("%").removesuffix("\\").strip() if percent else _ENDS.sub("", text)
    if _THOUSANDS.match(text):
        text = text.replace(",", "")
    if not _NUMBER.match(text):
        return None
    above, _, below = text.partition("/")
    if below and not int(below):
        return None
    return Fraction(above) / (int(below) if below else 1) / (100 if percent else 1)
