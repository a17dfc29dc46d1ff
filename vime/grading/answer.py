r"""The answer in a reply: what stands in the last balanced `\boxed{}` after the thinking, or where else a reply ends with one."""

import re

MAX_REPLY_CHARACTERS = 50_000
"""Of the end of a reply, where its answer is; the rest is not read."""
MAX_ANSWER_CHARACTERS = 2_000
_MAX_BOXES = 16
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LEAD = re.compile(r"^\W*(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*", re.IGNORECASE)


def answer_of(reply: str) -> str:
    r"""The answer that a reply gives: its last box, else its last `<answer>` tag, else its last line; "" if it says nothing.

    Everything up to the last `</think>` is left out, so a box in the thinking is no answer.
    """
    text = reply[-MAX_REPLY_CHARACTERS:].rpartition("</think>")[2]
    boxed = last_balanced_box(text)
    if boxed is not None:
        return boxed.strip()[:MAX_ANSWER_CHARACTERS]
    tagged = _last_tag(text)
    lines = [tagged] if tagged is not None else [line for line in text.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1].strip()[:MAX_ANSWER_CHARACTERS]).strip().strip("*").strip() if lines else ""


def has_box(reply: str) -> bool:
    """Whether the answer stands in a box."""
    return last_balanced_box(reply[-MAX_REPLY_CHARACTERS:].rpartition("</think>")[2]) is not None


def last_balanced_box(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}` whose braces are closed, None if there is none."""
    for start in [match.end() for match in _BOX.finditer(text)][-_MAX_BOXES:][::-1]:
        depth = 1
        for position in range(start, len(text)):
            depth += (text[position] == "{") - (text[position] == "}")
            if depth == 0:
                return text[start:position]
    return None


def _last_tag(text: str) -> str | None:
    """Content of the last `<answer>…</answer>`; found from its end, since a search for pairs is slow where many are open."""
    end = text.lower().rfind("</answer>")
    start = text.lower().rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if start >= 0 else None
