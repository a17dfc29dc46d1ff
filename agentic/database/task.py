"""Generated databases of owners, things and prices, and questions that need one query after the other.

"What does the thing of Abra cost?" needs the owners first and then the prices; the second query contains a name that only the
first result reveals. Every row has a database of its own, so that nothing can be learned by heart. A fifth of all people, and of
the prices that are asked about, occurs in the evaluation only; a hash chooses them.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from vime.data.split import Split, split_of

Row = dict[str, Any]
Kind = Literal["price", "owner"]
KINDS: tuple[Kind, ...] = ("price", "owner")
QUESTIONS: dict[Kind, str] = {"price": "What does the thing of {name} cost ?", "owner": "Who owns what costs {price} ?"}
FIRST_SYLLABLES = ("Ab", "Bra", "Cel", "Eri", "Fa", "Go", "Hu", "Ina", "Jo", "Ka", "Ne", "Po")
PEOPLE = tuple(first + last for first in FIRST_SYLLABLES for last in ("ra", "nis", "lo", "ben", "via", "mund"))
THINGS = (
    *("anvil", "barrel", "basket", "bell", "cart", "chair", "clock", "flute", "fork", "globe"),
    *("harp", "jug", "kettle", "kite", "oven", "plough", "quilt", "rake", "urn", "yoke"),
)
PRICES = range(10, 100)
NUM_THINGS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question with its database. Question(kind="price", name="Abra", owners={"Abra": "harp"}, prices={"harp": 37})"""

    kind: Kind
    name: str
    owners: dict[str, str]
    prices: dict[str, int]

    @property
    def thing(self) -> str:
        """The thing that the person owns."""
        return self.owners[self.name]

    @property
    def text(self) -> str:
        """The question in words."""
        return QUESTIONS[self.kind].format(name=self.name, price=self.prices[self.thing])

    @property
    def answer(self) -> str:
        """A price or a name."""
        return str(self.prices[self.thing]) if self.kind == "price" else self.name

    @property
    def row(self) -> Row:
        """A row of data."""
        return {"question": self.text, "answer": self.answer, "owners": self.owners, "prices": self.prices}

    @property
    def queries(self) -> tuple[str, str]:
        """The two queries that find the answer."""
        if self.kind == "price":
            return select("thing", "owners", "name", self.name), select("price", "prices", "thing", self.thing)
        return select("thing", "prices", "price", self.prices[self.thing]), select("name", "owners", "thing", self.thing)


def select(column: str, table: str, key: str, value: str | int) -> str:
    """One query. `select("thing", "owners", "name", "Abra")` is "SELECT thing FROM owners WHERE name = 'Abra'"."""
    return f"SELECT {column} FROM {table} WHERE {key} = {value!r}"


def sample_question(rng: random.Random, *, split: Split) -> Question:
    """A random question of a split about a random database."""
    people = rng.sample([name for name in PEOPLE if split_of(name) == split], NUM_THINGS)
    owners = dict(zip(people, rng.sample(THINGS, NUM_THINGS), strict=True))
    kind, name = rng.choice(KINDS), rng.choice(people)
    asked = rng.choice([price for price in PRICES if split_of(str(price)) == split])
    others = rng.sample([price for price in PRICES if price != asked], NUM_THINGS - 1)
    things = sorted(owners.values(), key=lambda thing: thing != owners[name])  # the one in question first
    prices = dict(zip(things, [asked, *others], strict=True))
    return Question(kind=kind, name=name, owners=owners, prices={thing: prices[thing] for thing in sorted(prices)})


def generate_rows(*, split: Split, num_items: int, seed: int) -> list[Row]:
    """Rows with question, answer and the tables of the database."""
    return [sample_question(random.Random(f"{split}/{seed}/{number}"), split=split).row for number in range(num_items)]
