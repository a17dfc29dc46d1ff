"""Generated questions of three kinds, mixed with customers of the built-in shop, for tiny models.

Both experts can add. Only the senior expert knows facts about towns. Prices are in passages, which must be searched and which
only the senior expert can read. A fifth of all sums, facts, prices and order numbers, chosen by hash, occurs in the evaluation
split only.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from agentic.toolorchestra.environment.tasks import generate_tasks
from agentic.toolorchestra.tiny.catalogue import FACTS, GOODS, TOWNS, fact_of, price_of
from vime.data.split import Split, split_of

Kind = Literal["sum", "fact", "price"]
QUESTION_KINDS: tuple[Kind, ...] = ("sum", "fact", "price")
SHOP = "shop"
KINDS = (*QUESTION_KINDS, SHOP)
QUESTIONS: dict[Kind, str] = {
    "sum": "How much is {left} + {right} ?",
    "fact": "What is the {fact} of {town} ?",
    "price": "What is the price of {goods} in {town} ?",
}
SUBJECT = "{goods} in {town}"
SMALLEST, LARGEST = 2, 20
MAX_DRAWS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question; Question(kind="fact", text="What is the colour of Ashford ?", answer="red"); `subject` is a price's."""

    kind: Kind
    text: str
    answer: str
    subject: str = ""


def sample_question(rng: random.Random, *, split: Split | None = None, kinds: tuple[Kind, ...] = QUESTION_KINDS) -> Question:
    """A random question of a split, or of any split: experts may know all answers, but not how the orchestrator is trained."""
    while True:
        question = _SAMPLERS[rng.choice(kinds)](rng)
        if split is None or split_of(question.text) == split:
            return question


def generate_rows(*, split: Split, num_items: int, seed: int, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """num_items rows, one kind after the other; the evaluation split asks no question twice.

    Raises ValueError if a split has fewer questions.
    """
    count = -(-num_items // len(kinds))
    by_kind = {kind: _rows_of(kind, split=split, num_items=count, seed=seed) for kind in kinds}
    return [by_kind[kind][index] for index in range(count) for kind in kinds][:num_items]


def _rows_of(kind: Any, *, split: Split, num_items: int, seed: int) -> list[dict[str, Any]]:
    if kind == SHOP:
        tasks = generate_tasks(num_items=2 * num_items, seed=seed, split=split, tells_all=True)
        unlike = {row["prompt"]: {**row, "domain": SHOP} for row in tasks}
        return list(unlike.values())[:num_items]
    rng, asked = random.Random(f"{kind}/{split}/{seed}"), set()
    rows = []
    for _ in range(MAX_DRAWS):
        if len(rows) == num_items:
            return rows
        question = sample_question(rng, split=split, kinds=(kind,))
        if split == "train" or question.text not in asked:
            asked.add(question.text)
            rows.append({"prompt": question.text, "answer": question.answer, "category": "qa", "domain": kind})
    raise ValueError(f"the split {split} has {len(asked)} questions of the kind {kind}, not {num_items}")


def _sum(rng: random.Random) -> Question:
    left, right = rng.randint(SMALLEST, LARGEST), rng.randint(SMALLEST, LARGEST)
    return Question(kind="sum", text=QUESTIONS["sum"].format(left=left, right=right), answer=str(left + right))


def _fact(rng: random.Random) -> Question:
    fact, town = rng.choice(sorted(FACTS)), rng.choice(TOWNS)
    return Question(kind="fact", text=QUESTIONS["fact"].format(fact=fact, town=town), answer=fact_of(fact, town))


def _price(rng: random.Random) -> Question:
    goods, town = rng.choice(GOODS), rng.choice(TOWNS)
    text, subject = QUESTIONS["price"].format(goods=goods, town=town), SUBJECT.format(goods=goods, town=town)
    return Question(kind="price", text=text, answer=str(price_of(goods, town)), subject=subject)


_SAMPLERS = {"sum": _sum, "fact": _fact, "price": _price}
