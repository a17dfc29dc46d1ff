"""A generated encyclopaedia and two-hop questions about it, for a tiny model.

A passage states one fact: who has a role at a ship (`Doc: Aldra. The captain is Bramo`), or what a place means to a person
(`Doc: Bramo. The home is Karst`). "What is the home of the captain of Aldra?" needs one of each, and the second query contains a
name that only the first result reveals. A fifth of all ships and a fifth of all people, chosen by hash, are asked about in the
evaluation only: the crews of these ships consist of these people. Every name is one token of the tiny tokenizer.
"""

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from vime.data.split import Split, split_of

Row = dict[str, Any]
Passage = dict[str, str]

QUESTION = "What is the {second} of the {first} of {ship}?"
FACT = "The {relation} is {value}."
QUERY = "{name} {relation}"
ROLES: tuple[str, ...] = ("owner", "captain", "builder")
PLACES: tuple[str, ...] = ("home", "birthplace", "grave")
DATA_SEED = 0
"""The encyclopaedia is always the same; the seed of a data set decides which questions are asked, and their order."""


def _names(first_syllables: str, last_syllables: str) -> tuple[str, ...]:
    """All combinations of a first and a last syllable, in a fixed order."""
    return tuple(first + last for first, last in product(first_syllables.split(), last_syllables.split()))


SHIPS = _names("Ald Bor Cyn Dav Eri Fos Gal Hes Ith Jun Kor Lyr Mun Nes Orm Pry", "ra wen mar tis ber lo quin dane")
PEOPLE = _names("Ab Bra Ca De El Fi Gu Ha Iv Jo Ka Le Mi No Ol Pa", "shi linu nus vio mond ric sha zel")
CITIES = _names("Bar Chel Dra Fen Gri Har Kir Lim", "burg ton polis ford haven ville mouth grad")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question with the person between its two facts, and its answer.

    Question(ship="Aldra", role="captain", person="Brashi", place="home", city="Barburg")
    """

    ship: str
    role: str
    person: str
    place: str
    city: str

    @property
    def text(self) -> str:
        """The question in words."""
        return QUESTION.format(second=self.place, first=self.role, ship=self.ship)


Facts = dict[str, dict[str, str]]
"""Facts of the encyclopaedia about each ship and person, by relation."""


def make_facts(rng: random.Random) -> Facts:
    """The crew of every ship, drawn from the people of its split, and the places of every person."""
    facts = {ship: dict(zip(ROLES, rng.choices(_CREWS[split_of(ship)], k=len(ROLES)), strict=True)) for ship in SHIPS}
    return facts | {person: dict(zip(PLACES, rng.choices(CITIES, k=len(PLACES)), strict=True)) for person in PEOPLE}


def passage(name: str, relation: str, value: str) -> Passage:
    """One fact as a passage of the corpus."""
    return {"id": f"{name}/{relation}", "title": name, "text": FACT.format(relation=relation, value=value)}


def passages() -> list[Passage]:
    """The encyclopaedia, for `retrieval.generator`."""
    facts = make_facts(random.Random(DATA_SEED))
    return [passage(name, relation, value) for name, known in facts.items() for relation, value in known.items()]


def question_about(ship: str, role: str, place: str, facts: Facts) -> Question:
    """The question about a place of a member of a crew."""
    person = facts[ship][role]
    return Question(ship=ship, role=role, person=person, place=place, city=facts[person][place])


def sample_question(facts: Facts, rng: random.Random) -> Question:
    """A random question of the training split."""
    return question_about(rng.choice(_SHIPS["train"]), rng.choice(ROLES), rng.choice(PLACES), facts)


def generate_rows(*, split: Split, num_items: int, seed: int) -> list[Row]:
    """num_items different questions of a split, or all that there are."""
    facts = make_facts(random.Random(DATA_SEED))
    found = [question_about(*names, facts) for names in product(_SHIPS[split], ROLES, PLACES)]
    random.Random(f"search_r1/{split}/{seed}").shuffle(found)
    return [{"question": one.text, "answers": [one.city], "person": one.person} for one in found[:num_items]]


_SPLITS: tuple[Split, ...] = ("train", "eval")
_SHIPS = {split: [ship for ship in SHIPS if split_of(ship) == split] for split in _SPLITS}
_CREWS = {split: [person for person in PEOPLE if split_of(person) == split] for split in _SPLITS}
