"""The simulated customer: one that follows a script, or a served model that plays one."""

import re
from typing import Protocol

from agentic.toolorchestra.environment.tasks import Task
from vime.rollout.model import ChatModel
from vime.types import Message

STOP = "###STOP###"
"""A customer who says this is done; the word is τ²-bench's."""
MAX_CUSTOMER_TOKENS = 256
ROLE = """You are a customer who writes to a shop's agent. You want this: {wish}
You know: {facts}
Write one short message at a time, say only what you are asked for, and invent nothing. When the agent has done what you want or
has said that it cannot be done, write {stop}."""


class Customer(Protocol):
    """Whoever the agent serves."""

    async def opening(self) -> str:
        """The first message."""
        ...

    async def answer(self, message: str) -> str:
        """The next one, after a message of the agent's; it holds `STOP` if there is nothing more to say."""
        ...


class ScriptedCustomer:
    """Answers a question with the fact whose word it names, each once, and stops at a message that asks for nothing.

    Questions end with a question mark: so a promise in which the word "order" stands is no question.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._told: set[str] = set()

    async def opening(self) -> str:
        """The task's."""
        return self._task.opening

    async def answer(self, message: str) -> str:
        """Facts that the message asks for, or `STOP`."""
        words = set(re.findall(r"\w+", message.lower()))
        asked = [name for name in self._task.facts if name in words and name not in self._told]
        if "?" not in message or not asked:
            return STOP
        self._told |= set(asked)
        return " ".join(self._task.facts[name] for name in asked)


class ModelCustomer:
    """A served model in the customer's role; never the one that is trained."""

    def __init__(self, task: Task, model: ChatModel) -> None:
        facts = " ".join(task.facts.values())
        self._task, self._model = task, model
        self._messages: list[Message] = [
            {"role": "system", "content": ROLE.format(wish=task.opening, facts=facts, stop=STOP)},
            {"role": "user", "content": "How can I help you?"},
        ]

    async def opening(self) -> str:
        """What the model says to a greeting."""
        return await self._say()

    async def answer(self, message: str) -> str:
        """What the model says next; an empty reply is taken for the end."""
        self._messages.append({"role": "user", "content": message})
        return await self._say() or STOP

    async def _say(self) -> str:
        turn = await self._model.chat(self._messages, max_tokens=MAX_CUSTOMER_TOKENS)
        text = (turn.text or "").strip()
        self._messages.append({"role": "assistant", "content": text})
        return text
