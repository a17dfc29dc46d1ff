r"""Finds the reference answers of a row in the layouts in which data sets are published.

| field | published by | example |
|---|---|---|
| `reward_model.ground_truth` | verl, DAPO, Search-R1 | `"34"`, `["Paris"]`, `{"target": ["Paris"]}` |
| `answers`, `golden_answers` | RULER, FlashRAG, SQuAD | `["Paris"]`, `{"text": ["Paris"], "answer_start": [3]}` |
| `answer` | GSM8K, AIME, HotpotQA, TriviaQA | `"… #### 72"`, `33`, `{"value": "Paris", "aliases": ["City of Light"]}` |
| `ground_truth`, `label`, `final_answer` | slime, DeepMath | `"34"` |
| `solution` | MATH, TRL | `"… so it is $\boxed{34}$."` |

An answer is a text, a number, or a list of these. The first of the fields counts that is there and not empty.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from vime.grading.boxed import last_boxed

ANSWER_FIELDS = ("answers", "answer", "ground_truth", "label", "golden_answers", "final_answer", "solution")
ANSWER_REMEDY = "write a text, a number or a list of these, or null if there is no answer; other fields are in sample.metadata"
_GSM8K = re.compile(r"(?:^|\n)#### *(?P<answer>\S[^\n]*?)\s*\Z")
"""The last line of an answer of GSM8K, behind its reasoning."""


class NoAnswerError(ValueError):
    """A row's answer is neither text nor number; the message goes on from "row 5"."""


def answers_of(row: Mapping[str, Any]) -> list[str]:
    """The texts of a row's reference answers, an empty list if it has none.

    Raises `NoAnswerError` if the field that counts, or an empty one before it, holds anything but texts and numbers.
    """
    for name, value in given_answers(row).items():
        if answers := [_without_reasoning(answer, name) for answer in texts_of(value, name)]:
            return answers
    return []


def given_answers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that hold an answer, which may be empty, in the order in which they count."""
    model = row.get("reward_model")
    found = {"reward_model.ground_truth": model.get("ground_truth")} if isinstance(model, Mapping) else {}
    found |= {name: row.get(name) for name in ANSWER_FIELDS}
    return {name: value for name, value in found.items() if value is not None}


def texts_of(value: Any, name: str) -> list[str]:
    """An answer, or several, as texts that are not blank. Raises `NoAnswerError`, naming the field, for anything else."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return [text for part in _published(value, name) for text in texts_of(part, name)]
    where = f"in its {name}" if isinstance(value, (list, tuple)) else f"for its {name}"
    texts = [_text(entry, where) for entry in (value if isinstance(value, (list, tuple)) else [value])]
    return [text for text in texts if text.strip()]


def _text(entry: Any, where: str) -> str:
    if isinstance(entry, str):
        return str(entry)
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return str(entry)
    if not isinstance(entry, (float, Decimal, np.floating)):
        raise NoAnswerError(f"has a {type(entry).__name__} {where}")
    if not math.isfinite(entry):
        raise NoAnswerError(f"has {entry}, which is no number, {where}")
    return f"{entry:f}" if isinstance(entry, Decimal) else str(entry)


def _published(mapping: Mapping[str, Any], name: str) -> list[Any]:
    """The answers within a mapping of Search-R1, SQuAD or TriviaQA."""
    given = {key: value for key, value in mapping.items() if value is not None}
    if set(given) == {"target"}:
        return [given["target"]]
    if set(given) == {"text", "answer_start"}:
        return [given["text"]]
    if {"value", "aliases"} <= set(given):
        return [given["value"], given["aliases"]]
    raise NoAnswerError(f"has a mapping of {', '.join(map(str, mapping)) or 'nothing'} for its {name}")


def _without_reasoning(answer: str, name: str) -> str:
    if found := _GSM8K.search(answer):
        return found["answer"]
    box = last_boxed(answer) if name == "solution" else None
    return answer if box is None else box.strip() or answer
