"""The simulated customer, which follows a script or is played by a served model."""

import re
from typing import Protocol

from agentic.toolorchestra.environment.tasks import Task
from vime.chat.served_model import ServedModel
from vime.types import Message

STOP = "###STOP###"
"""The text with which a customer ends the conversation; taken from τ²-bench."""
MAX_CUSTOMER_TOKENS = 256
ROLE = """You are a customer who writes to a shop's agent. You want this: {wish}
You know: {facts}
Write one short message at a time, say only what you are asked for, and invent nothing. When the agent has done what you want or
has said that it cannot be done, write {stop}."""


class Customer(Protocol):
    """The customer that the agent serves."""

    async def opening(self) -> str:
        """The first message."""
        ...

    async def answer(self, message: str) -> str:
        """The answer to a message of the agent; it contains `STOP` if the customer ends the conversation."""
        ...


class ScriptedCustomer:
    """Tells each fact once, when a question names its keyword, and ends the conversation at a message that asks for no new fact.

    Only a message with a question mark is a question, so that a promise with the word "order" in it is not.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._told: set[str] = set()

    async def opening(self) -> str:
        """The task's opening."""
        return self._task.opening

    async def answer(self, message: str) -> str:
        """The facts that the message asks for, or `STOP`."""
        words = set(re.findall(r"\w+", message.lower()))
        asked = [name for name in self._task.facts if name in words and name not in self._told]
        if "?" not in message or not asked:
            return STOP
        self._told |= set(asked)
        return " ".join(self._task.facts[name] for name in asked)


class ModelCustomer:
    """A served model that plays the customer; it is never the trained model."""

    def __init__(self, task: Task, model: ServedModel) -> None:
        facts = " ".join(task.facts.values())
        self._task, self._model = task, model
        self._messages: list[Message] = [
            {"role": "system", "content": ROLE.format(wish=task.opening, facts=facts, stop=STOP)},
            {"role": "user", "content": "How can I help you?"},
        ]

    async def opening(self) -> str:
        """The model's answer to a greeting."""
        return await self._say()

    async def answer(self, message: str) -> str:
        """The model's next message; an empty one ends the conversation."""
        self._messages.append({"role": "user", "content": message})
        return await self._say() or STOP

    async def _say(self) -> str:
        turn = await self._model.chat(self._messages, max_tokens=MAX_CUSTOMER_TOKENS)
        text = (turn.text or "").strip()
        self._messages.append({"role": "assistant", "content": text})
        return text
