"""The forms of a mathematical answer that has been read: an expression, or one of the classes here."""

from dataclasses import dataclass

from vime.grading.expression import Expression
from vime.grading.units import Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A text that is not a formula; it equals only a text of the same words."""

    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Infinity:
    """Plus or minus infinity."""

    sign: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerList:
    """Answers between brackets: `( (1,2), [0,1), \\{1,2\\}`, or with `opening=""` a list in any order.

    `joined` is the separator of its items: a comma, `and`, or `or`.
    """

    items: "tuple[Answer, ...]"
    opening: str = ""
    closing: str = ""
    joined: str = ","


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Rows of expressions."""

    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Relations in a row: `1 < x \\le 2` has three parts and the signs `<` and `le`."""

    parts: "tuple[Answer, ...]"
    signs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sets:
    """Two sets and `cup`, `cap` or `setminus` between them."""

    sign: str
    left: "Answer"
    right: "Answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSet:
    """The real numbers, or another named set."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Numeral:
    """A number in another base than ten: 101_7."""

    value: int
    base: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """A number with a unit."""

    number: Expression
    unit: Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A proportion: 3:4."""

    parts: tuple[Expression, ...]


Answer = Expression | Words | Infinity | AnswerList | Matrix | Chain | Sets | NamedSet | Numeral | Amount | Ratio
