"""RULER-HQA: HotpotQA questions over documents of any number of paragraphs (arXiv 2507.02259, section 4.1; RULER's qa_2).

A document mixes the question's own paragraphs, gold and distractors, with paragraphs of other questions in random order; each
consists of `Document i:`, its title and its sentences. Rows are read in the original layout and in Hugging Face's.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.memagent.ruler.item import Item
from vime.data.file_formats import read_rows

DOCUMENT = "Document {number}:\n{title}\n{text}"
SEPARATOR = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question; `gold` and `distractors` are positions in the pool of paragraphs.

    Example: `Question(text="Were Scott Derrickson and …?", answer="yes", gold=(1, 4), distractors=(0, 2, 3))`.
    """

    text: str
    answer: str
    gold: tuple[int, ...]
    distractors: tuple[int, ...]


class HotpotQA:
    """The questions of a file, and the pool of all their distinct paragraphs as (title, text)."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        """Raises `ValueError`, naming the row, if a row has neither layout or no gold paragraph."""
        positions: dict[tuple[str, str], int] = {}
        self.questions: list[Question] = []
        for number, row in enumerate(rows):
            gold_titles = _titles(row, number)
            gold: list[int] = []
            distractors: list[int] = []
            for title, text in _paragraphs(row, number):
                position = positions.setdefault((title, text), len(positions))
                (gold if title in gold_titles else distractors).append(position)
            if not gold:
                raise ValueError(f"row {number}: none of its paragraphs has a title of its supporting facts")
            question = Question(text=row["question"], answer=row["answer"], gold=tuple(gold), distractors=tuple(distractors))
            self.questions.append(question)
        self.pool = list(positions)

    @classmethod
    def read(cls, path: Path) -> "HotpotQA":
        """Reads a file of rows. Raises `ValueError` for another kind of file or a damaged one."""
        return cls(list(read_rows(path, key="source")))

    def task(self, *, seed: int, questions: list[str] | None = None) -> "HotpotQATask":
        """The task with a seed, which chooses the order of the questions, the other paragraphs and their order.

        With `questions` the items are these, in this order. Raises `ValueError` if one of them is not among the rows.
        """
        return HotpotQATask(self, seed=seed, questions=questions)


class HotpotQATask:
    """`task(index, size)`: a question over `size` paragraphs."""

    def __init__(self, source: HotpotQA, *, seed: int, questions: list[str] | None = None) -> None:
        self._source, self._seed = source, seed
        self._order = list(range(len(source.questions)))
        if questions is None:
            random.Random(f"{seed}/questions").shuffle(self._order)
            return
        places = {_words(question.text): place for place, question in enumerate(source.questions)}
        if missing := [question for question in questions if _words(question) not in places]:
            raise ValueError(f"{len(missing)} of {len(questions)} questions are not among HotpotQA's rows, like {missing[0]!r}")
        self._order = [places[_words(question)] for question in questions]

    @property
    def num_questions(self) -> int:
        """Number of items."""
        return len(self._order)

    def __call__(self, index: int, size: int) -> Item:
        """Raises `ValueError` if there are more gold paragraphs than `size`, or fewer paragraphs in the source."""
        question, pool = self._source.questions[self._order[index]], self._source.pool
        gold = len(question.gold)
        if not gold <= size <= len(pool):
            raise ValueError(f"{size} paragraphs: question {index} has {gold} gold ones, and the source has {len(pool)} in all")
        chance = random.Random(f"{self._seed}/{index}/{size}")
        chosen = [*question.gold, *question.distractors[: size - gold]]
        own = set(question.gold) | set(question.distractors)
        others = [position for position in range(len(pool)) if position not in own]
        chosen += chance.sample(others, size - len(chosen))
        chance.shuffle(chosen)
        places = [chosen.index(position) + 1 for position in question.gold]
        return Item(
            index=index,
            question=question.text,
            answers=[question.answer],
            parts=self._parts(chosen),
            about={"num_docs": size, "supporting_documents": sorted(places)},
        )

    def _parts(self, chosen: list[int]) -> Iterator[str]:
        for number, position in enumerate(chosen, start=1):
            title, text = self._source.pool[position]
            yield (SEPARATOR if number > 1 else "") + DOCUMENT.format(number=number, title=title, text=text)


def _words(question: str) -> str:
    return " ".join(question.lower().split())


def _paragraphs(row: dict[str, Any], number: int) -> list[tuple[str, str]]:
    """Title and text of a row's paragraphs, in either layout; the sentences include their spaces."""
    context = row.get("context")
    if isinstance(context, dict) and {"title", "sentences"} <= set(context):
        return [(title, "".join(sentences)) for title, sentences in zip(context["title"], context["sentences"], strict=True)]
    if isinstance(context, list) and all(isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in context):
        return [(title, "".join(sentences)) for title, sentences in context]
    raise ValueError(
        f"row {number}: context is neither HotpotQA's list of [title, sentences] nor Hugging Face's title and sentences"
    )


def _titles(row: dict[str, Any], number: int) -> set[str]:
    facts = row.get("supporting_facts")
    if isinstance(facts, dict) and "title" in facts:
        return set(facts["title"])
    if isinstance(facts, list):
        return {fact[0] for fact in facts}
    raise ValueError(f"row {number}: supporting_facts is neither a list of [title, sentence] nor title and sent_id")
