"""The world of the tiny task: prices, which are found by searching passages, and facts, which one expert has memorized."""

import hashlib

GOODS = (
    *("lamps", "books", "chairs", "ropes", "bells", "boots", "clocks", "knives"),
    *("mirrors", "pots", "rugs", "shovels", "tables", "vases", "wheels", "cups"),
)
TOWNS = tuple(
    first + last
    for first in ("Ash", "Brin", "Crow", "Elm", "Fen", "Grim", "Hol", "Kes", "Mill", "Oak", "Stan", "Wind")
    for last in ("ford", "ham", "ton", "worth")
)
FACTS: dict[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "white", "black", "gold"),
    "animal": ("bear", "wolf", "eagle", "stag", "lion", "swan"),
    "tree": ("oak", "pine", "birch", "maple", "cedar", "beech"),
    "flower": ("rose", "lily", "tulip", "poppy", "daisy", "iris"),
    "stone": ("ruby", "jade", "opal", "onyx", "amber", "pearl"),
    "fruit": ("apple", "pear", "plum", "grape", "lemon", "fig"),
    "fish": ("carp", "trout", "pike", "perch", "salmon", "eel"),
    "metal": ("iron", "copper", "silver", "tin", "lead", "zinc"),
}
"""Kinds of facts with their possible values; every town has one fact of each kind."""
LOWEST_PRICE, NUM_PRICES = 2, 10


def price_of(goods: str, town: str) -> int:
    """The price of goods in a town; it depends on the two names alone."""
    return LOWEST_PRICE + _number(f"{goods}/{town}") % NUM_PRICES


def fact_of(kind: str, town: str) -> str:
    """The town's fact of a kind (its colour, animal, …); it depends on the two names alone."""
    return FACTS[kind][_number(f"{kind}/{town}") % len(FACTS[kind])]


def passages() -> list[dict[str, str]]:
    """Every price as a passage of `vime.retrieval`: `{"id": "0", "title": "lamps in Ashford", "text": "cost 7 coins"}`."""
    pairs = [(goods, town) for goods in GOODS for town in TOWNS]
    return [
        {"id": str(number), "title": f"{goods} in {town}", "text": f"cost {price_of(goods, town)} coins"}
        for number, (goods, town) in enumerate(pairs)
    ]


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
