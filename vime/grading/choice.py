"""The letter of a multiple-choice answer."""

import re

_LETTER = re.compile(
    r"^\W*(?:\\(?:text|mathrm|textbf|mathbf)\{)?(?:(?:option|choice|answer)\W*)?\(?([A-Z])(?:[).:,}\]]|\s*$)", re.IGNORECASE
)


def letter(text: str) -> str | None:
    """The letter that a short answer begins with, upper case; None if it is not one.

    Example: `letter("(b) the second")` is "B", `letter("A cat")` None.
    """
    match = _LETTER.match(text.strip()[:200].strip("*$ "))
    return match.group(1).upper() if match else None
