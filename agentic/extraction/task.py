"""Sentences about a person, the name, age and town in them, and the reward of an answer like `Mira, 34, Halin`."""

import random
from typing import Any

from vime.data.split import Split
from vime.rollout.context import Context
from vime.types import Reward, Sample

NAMES = (
    "Mira",
    "Jonas",
    "Ada",
    "Bea",
    "Tomas",
    "Lena",
    "Omar",
    "Ines",
    "Rosa",
    "Felix",
    "Nora",
    "Karl",
    "Vera",
    "Hugo",
    "Alma",
    "Ivan",
)
TOWNS = ("Halin", "Rome", "Oslo", "Lima", "Cairo", "Porto", "Riga", "Kyoto", "Quito", "Bergen", "Lyon", "Perth")
FORMS = (
    "{name} is {age} years old and lives in {town}.",
    "At {age}, {name} moved to {town}.",
    "{name}, who has turned {age}, works in {town}.",
    "In {town} lives {name}, {age}.",
)
HELD_OUT = 4
"""Every fourth age is that of held-out sentences alone."""


def rows(*, split: Split, num_items: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a sentence, and its answer as `Mira, 34, Halin`."""
    drawn = random.Random(f"extraction/{split}/{seed}")
    ages = [age for age in range(18, 90) if (age % HELD_OUT == 0) == (split != "train")]
    return [_row(drawn.choice(NAMES), drawn.choice(ages), drawn.choice(TOWNS), drawn.choice(FORMS)) for _ in range(num_items)]


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Half for an answer that has the form, the other half by the share of its fields that are right.

    What has not the form is not printed: the agent's library raises an error then, and the rollout ends as `malformed`, with 0.
    """
    said, expected = (str(text).strip().split(", ") for text in (samples[-1].metadata["output"], samples[-1].label[0]))
    is_formed = len(said) == len(expected) and said[1].isdecimal()
    right = sum(one == other for one, other in zip(said, expected)) / len(expected) if is_formed else 0.0
    metrics = {"well_formed": float(is_formed), "right": float(said == expected)}
    return Reward(score=0.5 * is_formed + 0.5 * right, metrics=metrics)


def _row(name: str, age: int, town: str, form: str) -> dict[str, Any]:
    return {"question": form.format(name=name, age=age, town=town), "answers": [f"{name}, {age}, {town}"]}
