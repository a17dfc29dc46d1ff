"""Generated mazes for a tiny model: behind which of four doors, two rooms away, is a thing?

A maze states where each door and each room leads, in any order (`red to Arden. Arden to Corby. Corby to lup.`). The doors alone
do not tell where the thing is: a solver that walks through one finds out at the end whether it was the right one, and can walk
only once. So one solver finds it in about one of four cases, and a role that reads several walks sees which of them succeeded.
The answer is the way. A fifth of all things, chosen by hash, is sought in the evaluation only. Every name is one token.
"""

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vime.data.split import Split, split_of

Row = dict[str, Any]

DOORS: tuple[str, ...] = ("red", "blue", "green", "white")
STEP, FACT = " to ", "{place} to {next}."
QUESTION = "Maze: {facts} Find {thing}."
NUM_ROOMS = 2
"""Rooms between a door and a thing."""


def _names(first_syllables: str, last_syllables: str) -> tuple[str, ...]:
    return tuple(first + last for first in first_syllables.split() for last in last_syllables.split())


ROOMS = _names("Ar Bel Cor Dun Es For Gla Hol", "den mor wick ley tan gate ham by")
THINGS = _names("lu mo ka ri fe so na ti gu ve", "p nk dge lt x ster bo mmel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Maze:
    """The way behind each door, which ends with a thing, and the thing that is sought.

    Maze(ways={"red": ("red", "Arden", "Corby", "lup"), …}, facts=("Corby to lup.", …), thing="lup")
    """

    ways: dict[str, tuple[str, ...]]
    facts: tuple[str, ...]
    thing: str

    @property
    def text(self) -> str:
        """The maze and the task."""
        return QUESTION.format(facts=" ".join(self.facts), thing=self.thing)

    @property
    def door(self) -> str:
        """The right door."""
        return next(door for door, way in self.ways.items() if way[-1] == self.thing)

    @property
    def answer(self) -> str:
        """The way to the thing."""
        return STEP.join(self.ways[self.door])


def sample_maze(rng: random.Random, *, split: Split) -> Maze:
    """A random maze, in which a thing of this split is sought."""
    thing = rng.choice(_SOUGHT[split])
    things = [thing, *rng.sample([other for other in THINGS if other != thing], len(DOORS) - 1)]
    rng.shuffle(things)
    rooms = iter(rng.sample(ROOMS, NUM_ROOMS * len(DOORS)))
    ways = {door: (door, *[next(rooms) for _ in range(NUM_ROOMS)], end) for door, end in zip(DOORS, things, strict=True)}
    facts = [FACT.format(place=place, next=after) for way in ways.values() for place, after in pairwise(way)]
    rng.shuffle(facts)
    return Maze(ways=ways, facts=tuple(facts), thing=thing)


def generate_rows(*, split: Split, num_items: int, seed: int) -> list[Row]:
    """Rows with a maze as the question and the way as the answer."""
    mazes = [sample_maze(random.Random(f"multi_agent/{split}/{seed}/{index}"), split=split) for index in range(num_items)]
    return [{"question": maze.text, "answers": [maze.answer], "thing": maze.thing} for maze in mazes]


_SPLITS: tuple[Split, ...] = ("train", "eval")
_SOUGHT = {split: [thing for thing in THINGS if split_of(thing) == split] for split in _SPLITS}
