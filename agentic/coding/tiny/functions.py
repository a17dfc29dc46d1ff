"""The functions of generated repositories: the text of a document about one, its code, and the bugs that can be planted in it.

A document describes a function in words (`width times seven`), the code has signs (`width * 7`), so that the right code cannot be
copied from anywhere.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["operator", "constant", "swapped", "off_by_one", "missing_return", "comparison"]
KINDS: tuple[Kind, ...] = ("operator", "constant", "swapped", "off_by_one", "missing_return", "comparison")
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
COMPARISONS = {"above": ">", "below": "<"}
DIGITS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
PARAMETERS = (
    *("width", "height", "depth", "length", "price", "count", "rate", "speed", "time", "weight", "size", "score"),
    *("level", "limit", "offset", "total", "share", "value", "rank", "age", "cost", "load", "power", "area"),
)
VERBS = (
    *("open", "move", "find", "join", "turn", "lift", "send", "read", "sort", "pack", "fold", "mark"),
    *("draw", "load", "save", "scan", "plan", "check", "cut", "mix", "tune", "bind", "lock", "pull"),
)
NOUNS = (
    *("gate", "ship", "lamp", "road", "coin", "leaf", "wave", "bell", "tree", "card", "boat", "ring"),
    *("door", "rope", "cloud", "stone", "star", "field", "bridge", "mill", "tower", "cart", "seed", "bird"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """One function of a repository, as it should be and with a bug.

    Function(name="open_gate", parameters=("width", "rate"), document="width plus rate", code="return width + rate",
    wrong="return width - rate")
    """

    name: str
    parameters: tuple[str, ...]
    document: str
    """The function's return value, in words."""
    code: str
    """The function's only line."""
    wrong: str
    """The line with the bug."""

    def source(self, *, has_bug: bool = False) -> str:
        """The function in Python."""
        return f"def {self.name}({', '.join(self.parameters)}):\n    {self.wrong if has_bug else self.code}\n"


def names() -> list[str]:
    """All names that functions may have."""
    return [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]


def make_function(rng: random.Random, *, name: str, kind: Kind, parameters: tuple[str, str]) -> Function:
    """A function in which a bug of a kind can be planted."""
    first, second = parameters
    document, code, wrong = _MAKERS[kind](rng, first, second)
    used = parameters if second in code else (first,)
    return Function(name=name, parameters=used, document=document, code=code, wrong=wrong)


Lines = tuple[str, str, str]
"""The document's words, the right line, and the wrong one."""


def _operator(rng: random.Random, first: str, second: str) -> Lines:
    word, other = rng.sample(sorted(SIGNS), 2)
    return f"{first} {word} {second}", f"return {first} {SIGNS[word]} {second}", f"return {first} {SIGNS[other]} {second}"


def _constant(rng: random.Random, first: str, _: str) -> Lines:
    word, (number, other) = rng.choice(sorted(SIGNS)), rng.sample(sorted(DIGITS), 2)
    start = f"return {first} {SIGNS[word]} "
    return f"{first} {word} {number}", f"{start}{DIGITS[number]}", f"{start}{DIGITS[other]}"


def _swapped(_: random.Random, first: str, second: str) -> Lines:
    return f"{first} minus {second}", f"return {first} - {second}", f"return {second} - {first}"


def _off_by_one(_: random.Random, first: str, __: str) -> Lines:
    return f"sum up to {first}", f"return sum(range({first} + 1))", f"return sum(range({first}))"


def _missing_return(rng: random.Random, first: str, second: str) -> Lines:
    word = rng.choice(sorted(SIGNS))
    line = f"{first} {SIGNS[word]} {second}"
    return f"{first} {word} {second}", f"return {line}", f"result = {line}"


def _comparison(rng: random.Random, first: str, second: str) -> Lines:
    word, other = rng.sample(sorted(COMPARISONS), 2)
    start = f"return {first} "
    return f"{first} {word} {second}", f"{start}{COMPARISONS[word]} {second}", f"{start}{COMPARISONS[other]} {second}"


_MAKERS: dict[Kind, Callable[[random.Random, str, str], Lines]] = {
    "operator": _operator,
    "constant": _constant,
    "swapped": _swapped,
    "off_by_one": _off_by_one,
    "missing_return": _missing_return,
    "comparison": _comparison,
}
