"""Reads the letter of a multiple-choice answer."""

import re

_LEAD = r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?(?:(?:option|choice|answer)\W*)?\(?"
_LETTER = re.compile(rf"^\W*{_LEAD}([A-Z])(?:[).:,}}\]]|\s*$)", re.IGNORECASE)
_SECOND = re.compile(
    rf"[)\]}}\s]*(?:[,;/&+]|(?:and|or)\b|(?=\())\W*(?:(?:and|or)\s+)?{_LEAD}[A-Z](?=\s*(?:[)\]}},;:/&+]|\.(?!\w)|(?:and|or|are)\b|$))",
    re.IGNORECASE,
)
"""The text after the first letter in a list of letters: `, B`, `) and (C)`, `)(B)`; but not `, a cat`."""


def letter(text: str) -> str | None:
    """The letter, in upper case, with which a short answer begins; None if there is none, or if it is the first of several.

    Example: `letter("(b) the second")` is "B", `letter("A cat")` and `letter("A, B")` None.
    """
    short = text.strip()[:200].strip("*$ ")
    match = _LETTER.match(short)
    return match.group(1).upper() if match and not _SECOND.match(short, match.end(1)) else None
