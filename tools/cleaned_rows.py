"""Cleans the rows of a data set: renames fields, drops nulls, checks the schema, removes duplicates, finds overlap."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from agentic.toolorchestra.data import without_nulls

Row = dict[str, Any]
TYPES: dict[str, type | tuple[type, ...]] = {"text": str, "number": (int, float), "list": list, "mapping": dict, "messages": list}
NGRAM_WORDS = 13
"""Number of consecutive words that two overlapping questions share (arXiv 2005.14165, appendix C)."""
MAX_EXAMPLES = 5


class SchemaError(ValueError):
    """A row does not match its schema; the message names the row, the field and the expected kind."""


@dataclass(kw_only=True, slots=True)
class Recipe:
    """A recipe for cleaning the rows of one data set; see tools/datasets.yaml.

    Example: `Recipe(question="query", schema={"question": "text"}, rename={"query": "question"})`.
    """

    question: str
    schema: dict[str, str]
    rename: dict[str, str] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    instruction: list[str] = field(default_factory=list)
    keep_empty: str | None = None
    drop_nulls: bool = False
    rows: list[int] = field(default_factory=list)
    """Numbers of the first row to read and of the row to stop before; all rows if it is empty."""
    labels: list[str] = field(default_factory=list)
    """Names of the classes that the field `class` numbers from 0; they become the field `answer`."""
    most_words: int | None = None
    """Rows with a longer question are left out."""


@dataclass(kw_only=True, slots=True)
class Cleaned:
    """The cleaned rows with counts of removed ones; `num_conflicts` counts duplicates with a different answer."""

    rows: list[Row]
    num_read: int = 0
    num_left_out: int = 0
    num_duplicates: int = 0
    num_conflicts: int = 0


def clean(rows: Iterable[Row], recipe: Recipe, *, without: Collection[str] = ()) -> Cleaned:
    """The rows of a data set in their order, each question once, without the questions whose keys are in `without`.

    Raises `SchemaError` at the first row that breaks the schema.
    """
    result = Cleaned(rows=[])
    seen: dict[str, str] = {}
    for number, original in enumerate(islice(rows, *recipe.rows) if recipe.rows else rows):
        result.num_read += 1
        if not original or (recipe.keep_empty is not None and original.get(recipe.keep_empty)):
            result.num_left_out += 1
            continue
        if recipe.labels:
            original = original | {"answer": recipe.labels[original["class"]]}
        row = without_nulls(original) if recipe.drop_nulls else original
        row = {recipe.rename.get(name, name): value for name, value in row.items() if name not in recipe.drop}
        key_field = recipe.rename.get(recipe.question, recipe.question)
        check_schema(row, recipe.schema, number)
        if isinstance(row.get(key_field), str):
            row[key_field] = _without_instruction(row[key_field], recipe.instruction)
        key, answer = question_key(row, key_field, recipe.instruction), json.dumps(_answer(row), sort_keys=True, default=str)
        if key in without or (recipe.most_words is not None and len(key.split()) > recipe.most_words):
            result.num_left_out += 1
            continue
        if key in seen:
            result.num_duplicates += 1
            result.num_conflicts += seen[key] != answer
            continue
        seen[key] = answer
        result.rows.append(row)
    return result


def check_schema(row: Row, schema: dict[str, str], number: int) -> None:
    """Raises `SchemaError` if a field of the row is missing or of another kind than its schema says."""
    for name, kind in schema.items():
        if name not in row:
            raise SchemaError(f"row {number} has no field {name!r}; it has {', '.join(sorted(map(str, row)))}")
        value = row[name]
        right = kind == "any" or isinstance(value, TYPES[kind])
        if kind == "messages":
            right = right and bool(value) and all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in value)
        if not right or (kind == "text" and not value.strip()):
            raise SchemaError(f"row {number}: field {name!r} is {str(value)[:60]!r}, expected {kind}")


def question_key(row: Row, name: str, instruction: list[str]) -> str:
    """The text by which questions are compared: in lower case, with single spaces and without the instruction."""
    value: Any = row
    for part in name.split("."):
        value = value[part]
    if isinstance(value, list) and value and isinstance(value[-1], dict) and "content" in value[-1]:
        value = value[-1]["content"]
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return " ".join(_without_instruction(text, instruction).lower().split())


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Counts of one set's questions in another set: word for word (same), or 13 consecutive words of them (similar)."""

    num_same: int
    num_similar: int
    examples: list[str]


def overlap(questions: list[str], others: list[str]) -> Overlap:
    """The overlap of `questions` with `others`; both are keys of `question_key`."""
    known = set(others)
    ngrams = {ngram for other in others for ngram in _ngrams(other)}
    same = [question for question in questions if question in known]
    similar = [q for q in questions if q not in known and any(ngram in ngrams for ngram in _ngrams(q))]
    return Overlap(num_same=len(same), num_similar=len(similar), examples=[*same, *similar][:MAX_EXAMPLES])


def _ngrams(text: str) -> Iterator[str]:
    words = text.split()
    return (" ".join(words[start : start + NGRAM_WORDS]) for start in range(len(words) - NGRAM_WORDS + 1))


def _without_instruction(text: str, instruction: list[str]) -> str:
    for part in instruction:
        text = text.replace(part, "")
    return text.strip()


def _answer(row: Row) -> Any:
    return next((row[name] for name in ("reward_model", "answers", "answer", "evaluation_criteria") if name in row), None)
