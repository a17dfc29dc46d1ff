r"""Strict grading of a final answer in `\boxed{}`, as MemAgent's training reward does (arXiv 2507.02259; methods of verl)."""

import re

_WINDOW = 300
_REPLACEMENTS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
    ("\\%", ""),
    (" .", " 0."),
    ("{.", "{0."),
    (" ", ""),
)


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}` with balanced braces (or `\boxed word`), or None if there is none."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox")
    if rest.startswith(" ") and not rest.lstrip().startswith("{"):
        return rest[1:].split("$")[0].strip()
    rest = rest.lstrip()
    if not rest.startswith("{"):
        return None
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position]
    return None


def strip_string(text: str) -> str:
    """The text without differences of notation that do not change an answer (spaces, LaTeX sizes, degree signs)."""
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    return re.sub(r"^\.", "0.", text)


def boxed_equal(response: str, references: list[str]) -> bool:
    r"""True if the last box within the final 300 characters equals a reference after `strip_string`, ignoring case."""
    answer = last_boxed(response[-_WINDOW:].lower())
    if answer is None:
        return False
    return any(strip_string(answer) == strip_string(reference.lower()) for reference in references)
