"""The price list of the tiny task: what each of its goods costs in each of its towns, from 2 to 11 coins."""

import hashlib

GOODS = tuple("lamps books chairs ropes bells boots clocks knives mirrors pots rugs shovels tables vases wheels cups".split())
TOWNS = tuple(
    first + last
    for first in ("Bel", "Cor", "Dun", "Fal", "Gor", "Kel", "Lor", "Mor", "Nar", "Ros", "Syl", "Tor")
    for last in ("dor", "wick", "mere", "gard")
)
LOWEST_PRICE, NUM_PRICES = 2, 10
UNKNOWN = "nothing found"


def price_of(goods: str, town: str) -> int:
    """Return what goods cost in a town, the same for ever."""
    digest = hashlib.sha256(f"{goods}/{town}".encode()).digest()
    return LOWEST_PRICE + int.from_bytes(digest[:4], "big") % NUM_PRICES


def look_up(query: str) -> str:
    """Return the price that a query asks for, `nothing found` if it does not name goods and a town of the list."""
    words = set(query.replace("?", " ").replace(".", " ").split())
    goods = [name for name in GOODS if name in words]
    towns = [name for name in TOWNS if name in words]
    return str(price_of(goods[0], towns[0])) if len(goods) == 1 and len(towns) == 1 else UNKNOWN
