"""Plays the built-in shop by script, for demonstrations: the view of an agent, and a good or a bad next step."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from agentic.toolorchestra.customer_service import orchestrators_messages
from agentic.toolorchestra.environment.customer import STOP
from agentic.toolorchestra.environment.database import Action, Database, ToolError
from agentic.toolorchestra.environment.shop import DELIVERED, PENDING, POLICY, SHIPPED, TOOLS
from agentic.toolorchestra.environment.tasks import CITIES, REFUSAL, Task
from agentic.toolorchestra.offer import ALIAS, CALL_EXPERT
from vime.config import PromptStyle
from vime.types import Message

DONE = "It is done."
REFUSED = f"That is {REFUSAL}."
ITEM = 'It is "{item}".'
GET_ORDER = "get_order"
GRANTED = {PENDING: 0.4, SHIPPED: 0.5, DELIVERED: 0.6}
"""The share of wishes that a careless agent grants, by the order's status and regardless of the wish."""
ITEM_WISH, ADDRESS_WISH = "item", "address"

Step = str | Action
"""A message to the customer, or a call."""


def call_text(action: Action) -> str:
    """A call as the model writes it, in the form of the parser `hermes`."""
    return f"<tool_call>\n{json.dumps({'name': action['name'], 'arguments': action['arguments']})}\n</tool_call>"


@dataclass(kw_only=True, slots=True)
class Play:
    """One conversation, as the orchestrator sees it (`seen`) and as experts see it (`original`)."""

    task: Task
    seen: list[Message] = field(default_factory=list)
    original: list[Message] = field(default_factory=list)
    is_over: bool = False
    found: dict[str, Any] | None = None
    """The order, once it has been looked up."""
    is_changed: bool = False

    def __post_init__(self) -> None:
        self.original = [{"role": "system", "content": POLICY}, {"role": "user", "content": self.task.opening}]
        self.seen = orchestrators_messages(self.original, PromptStyle.tiny)
        self._database = Database(self.task.data, TOOLS)

    _database: Database = field(init=False)

    @property
    def wish(self) -> str:
        """The customer's wish: cancel, refund, address or item."""
        return self.task.id.split("-")[0]

    @property
    def order_id(self) -> str:
        """The number of the order that the wish is about."""
        return self.task.id.split("-")[1]

    def take(self, step: Step) -> None:
        """The orchestrator takes a step itself."""
        self.seen.append({"role": "assistant", "content": step if isinstance(step, str) else call_text(step)})
        self.seen += self._follow(step)

    def delegate(self, alias: str, step: Step) -> None:
        """The orchestrator calls an expert, who takes the step."""
        action = {"name": CALL_EXPERT, "arguments": {ALIAS[CALL_EXPERT]: alias}}
        self.seen.append({"role": "assistant", "content": call_text(action)})
        did = f"wrote: {step}" if isinstance(step, str) else f"called {step['name']}({json.dumps(step['arguments'])})"
        self.seen.append({"role": "tool", "name": CALL_EXPERT, "content": f"{alias} {did}"})
        self.seen += self._follow(step)

    def look_up(self) -> Action:
        """The call that shows the order."""
        return {"name": GET_ORDER, "arguments": {"order_id": self.order_id}}

    def change(self) -> Action:
        """The call that fulfils the customer's wish, whether it is allowed or not."""
        if self.wish != ADDRESS_WISH:
            return {"name": f"{self.wish}_order", "arguments": {"order_id": self.order_id}}
        city = next(name for name in CITIES if name in self.task.facts["city"])
        return {"name": "change_address", "arguments": {"order_id": self.order_id, "city": city}}

    def right_step(self) -> Step:
        """The next step according to the policy."""
        if self.is_changed:
            return DONE
        if self.found is None:
            return self.look_up()
        if self.wish == ITEM_WISH:
            return ITEM.format(item=self.found["item"])
        return self.change() if self.task.actions else REFUSED

    def careless_step(self, rng: random.Random) -> Step:
        """The next step of an agent that ignores the policy and grants wishes at random."""
        if self.is_changed:
            return DONE if rng.random() < 0.8 else REFUSED
        if self.found is None and rng.random() < 0.75:
            return self.look_up()
        if self.wish == ITEM_WISH:
            return ITEM.format(item=self.found["item"]) if self.found is not None and rng.random() < 0.6 else REFUSED
        status = self.found["status"] if self.found is not None else SHIPPED
        return self.change() if rng.random() < GRANTED[status] else REFUSED

    def _follow(self, step: Step) -> list[Message]:
        if isinstance(step, str):
            self.original.append({"role": "assistant", "content": step})
            self.is_over = True
            return [{"role": "user", "content": STOP}]
        said: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": step}]}
        try:
            text = self._database.call(step["name"], step["arguments"])
            self.is_changed = self.is_changed or step["name"] != GET_ORDER
            self.found = json.loads(text) if step["name"] == GET_ORDER else self.found
        except ToolError as error:
            text = f"Error: {error}"
        result: Message = {"role": "tool", "name": step["name"], "content": text}
        self.original += [said, result]
        return [result]
