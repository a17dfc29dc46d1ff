"""Whether a rollout solved its task: answers by words, function calls by what they did."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

MAX_ANSWER_WORDS = 500
"""A longer answer is wrong (ToolOrchestra's published evaluation)."""
SHORT_LABEL_WORDS, MAX_TIMES_LONGER = 3, 10


def normalize(text: str) -> str:
    """Compatible characters made equal, small letters, spaces for punctuation."""
    plain = unicodedata.normalize("NFKD", text).lower()
    letters = "".join(" " if unicodedata.category(sign)[0] in "PS" else sign for sign in plain if not unicodedata.combining(sign))
    return re.sub(r"\s+", " ", letters).strip()


def answer_is_right(answer: str, label: str) -> bool:
    """Equal to the label, or holding it word by word; but a short label in an answer ten times as long proves nothing.

    slime-agentic looks for the label's characters, which finds "4" in "14"; here whole words must agree. An empty answer and one
    of more than 500 words are wrong.
    """
    ours, wanted = normalize(answer).split(), normalize(label).split()
    if not ours or not wanted or len(ours) > MAX_ANSWER_WORDS:
        return False
    if ours == wanted:
        return True
    if len(wanted) <= SHORT_LABEL_WORDS and len(ours) > MAX_TIMES_LONGER * len(wanted):
        return False
    return any(ours[start : start + len(wanted)] == wanted for start in range(len(ours) - len(wanted) + 1))


def same_calls(ours: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> bool:
    """Whether two lists of `{"name", "arguments"}` are the same calls in any order: slime-agentic's fallback."""
    return Counter(map(_key, ours)) == Counter(map(_key, wanted))


def _key(call: dict[str, Any]) -> str:
    return json.dumps([call["name"], call.get("arguments") or {}], sort_keys=True, default=str)
