"""RULER's needle-in-a-haystack and variable-tracking tasks (arXiv 2404.06654, section 3 and appendix B), in our own words.

There are three kinds of haystack: a few repeated sentences (`noise`), a text that you provide (`text`), or other needles
(`needles`).
"""

import random
import re
import string
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, pairwise

from agentic.memagent.ruler.item import Item
from agentic.memagent.ruler.words import make_words

NOISE = ("The river is wide.", "The hills are far away.", "It rains in the morning.", "We set out early.", "We came back late.")
NEEDLE = "One of the secret {kind} of {key} is {value}."
QUESTION = "Which secret {kind} of {keys} does the text mention? Give all of them."
NUM_DIGITS = 7
NUM_HOPS = 4
VARIABLE_LETTERS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Needles:
    """One needle task.

    `num_keys` different keys are hidden, each with `num_values` values; the question asks for `num_queries` of the keys.
    """

    haystack: str
    keys: str = "words"
    values: str = "numbers"
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1


NEEDLE_TASKS: dict[str, Needles] = {
    "niah_single_1": Needles(haystack="noise"),
    "niah_single_2": Needles(haystack="text"),
    "niah_single_3": Needles(haystack="text", values="codes"),
    "niah_multikey_1": Needles(haystack="text", num_keys=4),
    "niah_multikey_2": Needles(haystack="needles"),
    "niah_multikey_3": Needles(haystack="needles", keys="codes", values="codes"),
    "niah_multivalue": Needles(haystack="text", num_values=4),
    "niah_multiquery": Needles(haystack="text", num_keys=4, num_queries=4),
}
"""The eight variants of RULER's table 2."""


class NeedleTask:
    """`task(index, size)`: needles among `size` sentences."""

    def __init__(self, needles: Needles, *, seed: int, text: str | None = None) -> None:
        """Raises `ValueError` if the haystack is a text and none is given."""
        if needles.haystack == "text" and not text:
            raise ValueError("this task hides its needles in a text: use one with --haystack FILE (RULER takes essays)")
        self._needles, self._seed = needles, seed
        self._sentences = re.split(r"(?<=[.!?])\s+", text.strip()) if text else list(NOISE)

    def __call__(self, index: int, size: int) -> Item:
        """Needles and question depend on the index alone, their places on the index and the size."""
        chance, task = random.Random(f"{self._seed}/{index}"), self._needles
        keys = make(chance, task.keys, task.num_keys)
        hidden = {key: make(chance, task.values, task.num_values) for key in keys}
        asked = keys[: task.num_queries]
        lines = [NEEDLE.format(kind=task.values, key=key, value=value) for key in keys for value in hidden[key]]
        places = random.Random(f"{self._seed}/{index}/{size}")
        haystack = self._haystack(size, places)
        return Item(
            index=index,
            question=QUESTION.format(kind=task.values, keys=" and ".join(asked)),
            answers=[value for key in asked for value in hidden[key]],
            parts=hide(lines, haystack, size=size, chance=places),
            needs_all=True,
            about={"size": size},
        )

    def _haystack(self, size: int, chance: random.Random) -> Iterator[str]:
        if self._needles.haystack != "needles":
            return islice(cycle(self._sentences), size)
        kinds = self._needles.keys, self._needles.values
        pairs = ((make(chance, kinds[0], 1)[0], make(chance, kinds[1], 1)[0]) for _ in range(size))
        return (NEEDLE.format(kind=kinds[1], key=key, value=value) for key, value in pairs)


class VariableTask:
    """`task(index, size)`: a chain of assignments among `size` sentences; the answers are all variables that hold the value."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed

    def __call__(self, index: int, size: int) -> Item:
        """A chain that passes one value on four times."""
        chance = random.Random(f"{self._seed}/{index}")
        names: list[str] = []
        while len(names) <= NUM_HOPS:
            name = "".join(chance.choices(string.ascii_uppercase, k=VARIABLE_LETTERS))
            names += [name] if name not in names else []
        value = make(chance, "numbers", 1)[0][:5]
        lines = [f"VAR {names[0]} = {value}"] + [f"VAR {later} = VAR {name}" for name, later in pairwise(names)]
        places = random.Random(f"{self._seed}/{index}/{size}")
        return Item(
            index=index,
            question=f"The text assigns variables. Which variables hold the value {value}, directly or through others? Give all.",
            answers=names,
            parts=hide(lines, islice(cycle(NOISE), size), size=size, chance=places, in_order=True),
            needs_all=True,
            about={"size": size},
        )


def hide(lines: list[str], haystack: Iterator[str], *, size: int, chance: random.Random, in_order: bool = False) -> Iterator[str]:
    """The haystack's sentences with `lines` at random places between them, each on a line of its own."""
    places = sorted(chance.randrange(size + 1) for _ in lines)
    hidden = list(lines) if in_order else chance.sample(lines, len(lines))
    first = True
    for position in range(size + 1):
        found = [line for place, line in zip(places, hidden, strict=True) if place == position]
        sentence = next(haystack, None)
        for text in found if sentence is None else [*found, sentence]:
            yield text if first else f"\n{text}"
            first = False


def make(chance: random.Random, kind: str, count: int) -> list[str]:
    """`count` different words, numbers of seven digits, or UUIDs (`codes`)."""
    if kind == "words":
        return make_words(chance, count)
    found: dict[str, None] = {}
    while len(found) < count:
        if kind == "numbers":
            found[str(chance.randrange(10 ** (NUM_DIGITS - 1), 10**NUM_DIGITS))] = None
        else:
            found[str(uuid.UUID(int=chance.getrandbits(128), version=4))] = None
    return list(found)
