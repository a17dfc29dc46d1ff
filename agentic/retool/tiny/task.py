"""Generated arithmetic that a tiny model can do only by programs: products of large numbers, and several steps one after another.

Numbers are large enough that a model of this size cannot compute with them, and short enough that it can copy them. A fifth of
all first numbers, chosen by hash, occurs in the evaluation split only.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vime.data.split import Split, split_of

Kind = Literal["product", "steps"]
KINDS: tuple[Kind, ...] = ("product", "steps")
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
QUESTIONS: dict[Kind, str] = {
    "product": "What is {first} times {second} ?",
    "steps": "Take {first} times {second} . Then {word} {third} ?",
}
FACTORS, THIRDS = range(3000, 10000), range(100, 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One problem; a product has no third number. Task(kind="steps", numbers=(4821, 9734, 355), word="minus")"""

    kind: Kind
    numbers: tuple[int, ...]
    word: str = ""

    @property
    def question(self) -> str:
        """The problem in words."""
        first, second, *others = self.numbers
        return QUESTIONS[self.kind].format(first=first, second=second, word=self.word, third=others[0] if others else "")

    @property
    def product(self) -> str:
        """The first step in Python."""
        return f"{self.numbers[0]} * {self.numbers[1]}"

    @property
    def last_step(self) -> str:
        """The step after the product, in Python; empty if there is none."""
        return f" {SIGNS[self.word]} {self.numbers[2]}" if self.word else ""

    @property
    def answer(self) -> int:
        """The number that is asked for."""
        first, second, *others = self.numbers
        return first * second + {"plus": 1, "minus": -1}.get(self.word, 0) * sum(others)


def sample_task(rng: random.Random, *, split: Split, kinds: Sequence[Kind] = KINDS) -> Task:
    """Return a random problem of a split."""
    kind = rng.choice(list(kinds))
    first = rng.choice(FACTORS)
    while split_of(str(first)) != split:
        first = rng.choice(FACTORS)
    second = rng.choice(FACTORS)
    if kind == "product":
        return Task(kind=kind, numbers=(first, second))
    return Task(kind=kind, numbers=(first, second, rng.choice(THIRDS)), word=rng.choice(("plus", "minus")))


def generate_rows(*, split: Split, num_items: int, seed: int, kinds: Sequence[Kind] = KINDS) -> list[dict[str, Any]]:
    """Return rows as those of DAPO-Math-17k: a prompt of one message and the reference."""
    return [_row(sample_task(random.Random(f"{split}/{seed}/{index}"), split=split, kinds=kinds)) for index in range(num_items)]


def _row(task: Task) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": task.question}],
        "data_source": "retool_tiny",
        "reward_model": {"style": "rule", "ground_truth": str(task.answer)},
        "extra_info": {"kind": task.kind},
    }
