r"""Finds the answer in a reply: the content of the last balanced `\boxed{}` after the thinking, or else the reply's end."""

import re

MAX_REPLY_CHARACTERS = 50_000
"""Characters at a reply's end that are searched for the answer."""
MAX_ANSWER_CHARACTERS = 2_000
_MAX_BOXES = 16
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LEAD = re.compile(r"^\W*(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*", re.IGNORECASE)


def answer_of(reply: str) -> str:
    r"""The answer of a reply: its last box, else its last `<answer>` tag, else its last line; "" for an empty reply.

    Everything up to the last `</think>` is ignored, so that a box in the thinking is no answer.
    """
    text = reply[-MAX_REPLY_CHARACTERS:].rpartition("</think>")[2]
    boxed = last_balanced_box(text)
    if boxed is not None:
        return boxed.strip()[:MAX_ANSWER_CHARACTERS]
    tagged = _last_tag(text)
    lines = [tagged] if tagged is not None else [line for line in text.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1].strip()[:MAX_ANSWER_CHARACTERS]).strip().strip("*").strip() if lines else ""


def has_box(reply: str) -> bool:
    """Whether the reply gives its answer in a box."""
    return last_balanced_box(reply[-MAX_REPLY_CHARACTERS:].rpartition("</think>")[2]) is not None


def last_balanced_box(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}` with closed braces, or None if there is none."""
    for start in [match.end() for match in _BOX.finditer(text)][-_MAX_BOXES:][::-1]:
        depth = 1
        for position in range(start, len(text)):
            depth += (text[position] == "{") - (text[position] == "}")
            if depth == 0:
                return text[start:position]
    return None


def _last_tag(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`, searched from the end, which is quick even with many unclosed tags."""
    end = text.lower().rfind("</answer>")
    start = text.lower().rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if start >= 0 else None
