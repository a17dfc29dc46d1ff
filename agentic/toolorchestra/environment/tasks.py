"""Generated tasks of the shop as rows; a fifth of all order numbers occurs in the evaluation split only."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from agentic.toolorchestra.environment.database import Action, Data, ToolError, replayed
from agentic.toolorchestra.environment.shop import DELIVERED, PENDING, STATUSES, TOOLS
from vime.data.split import Split, split_of

NUM_ORDER_IDS = 1000
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana")
ITEMS = ("lamp", "chair", "kettle", "clock", "rug", "desk", "mirror", "vase")
CITIES = ("Bonn", "Lyon", "Oslo", "Porto", "Turin", "Vienna")
REFUSAL = "not possible"
"""Words that the agent must say if the policy forbids a wish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A customer's wish and how it is solved.

    Example: `Task(id="cancel-0123-pending", opening="I want to cancel an order.", facts={"order": "It is 0123."}, data={…},
    actions=[{"name": "cancel_order", "arguments": {"order_id": "0123"}}], communicate=[])`.
    """

    id: str
    opening: str
    """The customer's first words."""
    facts: dict[str, str]
    """The customer's answers, by a keyword in the agent's question."""
    data: Data
    actions: list[Action]
    """The calls of a correct solution; at the end the database must be as after these."""
    communicate: list[str] = field(default_factory=list)
    """Words that the agent must say in any of its messages."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Task":
        """The task from the result of `asdict`."""
        return cls(**values)


WISHES: dict[str, tuple[str, str]] = {
    "cancel": (PENDING, "I want to cancel an order."),
    "refund": (DELIVERED, "I want a refund of an order."),
    "address": (PENDING, "I want an order to go to another city."),
    "item": ("", "I want to know what is in an order."),
}
"""The order status that the policy requires ("" for any), and the customer's opening, by kind of wish."""


def generate_tasks(
    *, num_items: int | None, seed: int, split: Split = "train", num_orders: int = 3, tells_all: bool = False
) -> list[dict[str, Any]]:
    """Rows for `data.*.generator`: `prompt`, `answer` (the task's id), and `task`.

    The database holds `num_orders` orders. With `tells_all` the customer tells all facts in the opening.
    """
    rng = random.Random(f"{split}-{seed}")
    numbers = [number for number in map("{:04}".format, range(NUM_ORDER_IDS)) if split_of(number) == split]
    rows = []
    for _ in range(num_items if num_items is not None else len(numbers)):
        task = make_task(rng, numbers=rng.sample(numbers, num_orders), tells_all=tells_all)
        rows.append({"prompt": task.opening, "answer": task.id, "task": asdict(task)})
    return rows


def make_task(rng: random.Random, *, numbers: list[str], tells_all: bool) -> Task:
    """A task with a random wish about the first of the orders; the policy forbids about a quarter of all wishes."""
    wish = rng.choice(sorted(WISHES))
    needed, opening = WISHES[wish]
    orders = {number: _order(rng) for number in numbers}
    asked = numbers[0]
    order = orders[asked]
    if needed and rng.random() < 0.5:
        order["status"] = needed
    facts = {"order": f"The order is {asked}.", "name": f"I am {order['customer']}."}
    city = rng.choice([name for name in CITIES if name != order["city"]])
    if wish == "address":
        facts["city"] = f"It should go to {city}."
    actions: list[Action] = []
    if needed and order["status"] == needed:
        name = "change_address" if wish == "address" else f"{wish}_order"
        actions = [{"name": name, "arguments": {"order_id": asked} | ({"city": city} if wish == "address" else {})}]
    communicate = [order["item"]] if wish == "item" else [] if actions else [REFUSAL]
    if tells_all:
        opening = " ".join([opening, facts["order"], *([facts["city"]] if wish == "address" else [])])
    task = Task(
        id=f"{wish}-{asked}-{order['status']}",
        opening=opening,
        facts=facts,
        data={"orders": dict(sorted(orders.items()))},
        actions=actions,
        communicate=communicate,
    )
    try:
        replayed(task.data, TOOLS, task.actions)
    except ToolError as error:
        raise AssertionError(f"{task.id} cannot be solved: {error}") from error
    return task


def _order(rng: random.Random) -> dict[str, str]:
    return {
        "customer": rng.choice(CUSTOMERS),
        "item": rng.choice(ITEMS),
        "city": rng.choice(CITIES),
        "status": rng.choice(STATUSES),
    }
