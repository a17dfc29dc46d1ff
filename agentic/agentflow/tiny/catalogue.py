"""The price list of the tiny task: the price of each of its goods in each of its towns, from 2 to 11 coins."""

import hashlib

from agentic.agentflow.tools.tool import Tool
from vime.rollout.context import Context

GOODS = (
    *("lamps", "books", "chairs", "ropes", "bells", "boots", "clocks", "knives"),
    *("mirrors", "pots", "rugs", "shovels", "tables", "vases", "wheels", "cups"),
)
TOWNS = tuple(
    first + last
    for first in ("Bel", "Cor", "Dun", "Fal", "Gor", "Kel", "Lor", "Mor", "Nar", "Ros", "Syl", "Tor")
    for last in ("dor", "wick", "mere", "gard")
)
LOWEST_PRICE, NUM_PRICES = 2, 10
UNKNOWN = "nothing found"


def price_of(goods: str, town: str) -> int:
    """Return the price of goods in a town; it depends on the two names alone."""
    digest = hashlib.sha256(f"{goods}/{town}".encode()).digest()
    return LOWEST_PRICE + int.from_bytes(digest[:4], "big") % NUM_PRICES


def look_up(query: str) -> str:
    """Return the price that a query asks for, or `nothing found` if it does not name one kind of goods and one town."""
    words = set(query.replace("?", " ").replace(".", " ").split())
    goods = [name for name in GOODS if name in words]
    towns = [name for name in TOWNS if name in words]
    return str(price_of(goods[0], towns[0])) if len(goods) == 1 and len(towns) == 1 else UNKNOWN


class PriceList(Tool):
    """The price list as a tool."""

    name = "price_list"
    title = "Price_List_Tool"
    description = "Says what one piece of some goods costs in a town; it does not compute."
    demo_commands = ('execution = tool.execute(query="""price of lamps in Corwick""")',)
    deterministic = True

    async def execute(self, context: Context, query: str) -> str:
        """The price in coins, as a number."""
        return look_up(query)
