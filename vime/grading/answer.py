r"""Finds the answer in a reply: the content of the last balanced `\boxed{}` after the thinking, or else the reply's end."""

import re

from vime.thinking import after_thinking

MAX_REPLY_CHARACTERS = 50_000
"""Characters at a reply's end that are searched for the answer."""
MAX_ANSWER_CHARACTERS = 2_000
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LEAD = re.compile(r"^\W*(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*", re.IGNORECASE)


def answer_of(reply: str, *, thinks: bool = False) -> str:
    r"""The answer of a reply: its last box, else its last `<answer>` tag, else its last line; "" if it has none.

    Thinking is ignored (`vime.thinking`, with the same `thinks`): a box in it is not an answer, and a reply that was cut within
    it has no answer. A reply that was cut in its last box has none either, because this box was about to replace an earlier one.
    """
    text = after_thinking(reply, thinks=thinks)[-MAX_REPLY_CHARACTERS:]
    boxed = last_box(text)
    if boxed is not None:
        return boxed.strip()[:MAX_ANSWER_CHARACTERS]
    tagged = _last_tag(text)
    lines = [tagged] if tagged is not None else [line for line in text.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1].strip()[:MAX_ANSWER_CHARACTERS]).strip().strip("*").strip() if lines else ""


def has_box(reply: str, *, thinks: bool = False) -> bool:
    """True if the reply gives its answer in a box that it closes."""
    return bool(last_box(after_thinking(reply, thinks=thinks)[-MAX_REPLY_CHARACTERS:]))


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`, "" if its brace is never closed, or None if there is no box."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for position in range(starts[-1], len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return text[starts[-1] : position]
    return ""


def _last_tag(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`, searched from the end, which is quick even with many unclosed tags."""
    end = text.lower().rfind("</answer>")
    start = text.lower().rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if start >= 0 else None
