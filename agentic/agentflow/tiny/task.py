"""Generated arithmetic and small word problems that need the right tools in the right order.

A sum needs the Python tool. A bill or a rest needs a price from the price list first (`catalogue.py`), and then the Python tool.
Numbers are below 100. A fifth of the prices and of the sums, chosen by hash, occurs in the evaluation split only.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from agentic.agentflow.tiny.catalogue import GOODS, TOWNS, price_of
from vime.data.split import Split, split_of

Kind = Literal["sum", "bill", "rest"]
Row = dict[str, Any]

DATA_SOURCE = "agentflow_tiny"
KINDS: tuple[Kind, ...] = ("sum", "bill", "rest")
LOOKUP, PYTHON, GENERATOR = "price_list", "python_coder", "base_generator"
QUESTIONS: dict[Kind, str] = {
    "sum": "How much is {left} {sign} {right} ?",
    "bill": "How much do {left} {goods} cost at the price of {goods} in {town} ?",
    "rest": "How much of {left} coins is left after paying the price of {goods} in {town} ?",
}
LOOKUP_GOAL = "price of {goods} in {town}"
COMPUTE_GOAL = "Compute {left} {sign} {right}"
SIGNS = ("+", "-", "*")
LARGEST = 99


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One problem; Task(kind="bill", left=3, sign="*", right=7, goods="lamps", town="Corwick"); a sum has no goods."""

    kind: Kind
    left: int
    sign: str
    right: int
    goods: str = ""
    town: str = ""

    @property
    def question(self) -> str:
        """The question's text; the price is not in it."""
        return QUESTIONS[self.kind].format(left=self.left, sign=self.sign, right=self.right, goods=self.goods, town=self.town)

    @property
    def answer(self) -> int:
        """The number that is asked for."""
        return {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.sign]

    @property
    def lookup_goal(self) -> str:
        """The sub-goal of looking up the price."""
        return LOOKUP_GOAL.format(goods=self.goods, town=self.town)

    @property
    def compute_goal(self) -> str:
        """The sub-goal of computing the answer."""
        return COMPUTE_GOAL.format(left=self.left, sign=self.sign, right=self.right)

    @property
    def tools(self) -> tuple[str, ...]:
        """The right tools, in order."""
        return (PYTHON,) if self.kind == "sum" else (LOOKUP, PYTHON)


def sample_task(rng: random.Random, *, split: Split, kinds: tuple[Kind, ...] = KINDS) -> Task:
    """Return a random problem of a split; all its numbers and its answer lie between 0 and `LARGEST`."""
    kind = rng.choice(kinds)
    while True:
        task = _sample_sum(rng) if kind == "sum" else _sample_word_problem(rng, kind)
        subject = task.question if kind == "sum" else task.lookup_goal
        if 0 <= task.answer <= LARGEST and split_of(subject) == split:
            return task


def _sample_sum(rng: random.Random) -> Task:
    sign = rng.choice(SIGNS)
    largest = 9 if sign == "*" else LARGEST
    return Task(kind="sum", left=rng.randint(2, largest), sign=sign, right=rng.randint(2, largest))


def _sample_word_problem(rng: random.Random, kind: Kind) -> Task:
    goods, town = rng.choice(GOODS), rng.choice(TOWNS)
    left, sign = (rng.randint(2, 9), "*") if kind == "bill" else (rng.randint(20, LARGEST), "-")
    return Task(kind=kind, left=left, sign=sign, right=price_of(goods, town), goods=goods, town=town)


def generate_rows(*, split: Split, num_items: int, seed: int, kinds: tuple[Kind, ...] = KINDS) -> list[Row]:
    """Return num_items problems of the given kinds as rows."""
    rows = []
    for index in range(num_items):
        task = sample_task(random.Random(f"{split}/{seed}/{index}"), split=split, kinds=tuple(kinds))
        rows.append(
            {
                "prompt": [{"role": "user", "content": task.question}],
                "data_source": DATA_SOURCE,
                "grader": "number",
                "first_tool": task.tools[0],
                "reward_model": {"style": "rule", "ground_truth": [str(task.answer)]},
                "extra_info": {"index": index, "split": split, "kind": task.kind, "tools": list(task.tools)},
            }
        )
    return rows
