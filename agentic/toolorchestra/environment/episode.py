"""One conversation of customer, agent and tools, and its outcome."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from agentic.toolorchestra.environment.customer import STOP, Customer
from agentic.toolorchestra.environment.database import Database, ToolError, replayed
from agentic.toolorchestra.environment.shop import POLICY, TOOLS
from agentic.toolorchestra.environment.tasks import Task
from agentic.toolorchestra.tool_calls import ToolCall
from vime.types import Message


class End(Enum):
    """The reason why a conversation ended."""

    customer_stop = "customer_stop"
    max_steps = "max_steps"
    too_many_errors = "too_many_errors"


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """The reward of a conversation, 1 or 0, with the parts that it was computed from.

    Example: `EpisodeResult(reward=0.0, parts={"database": 1.0, "communicate": 0.0})`.
    """

    reward: float
    parts: dict[str, float]


class Episode(Protocol):
    """The environment that the orchestrator talks to: the built-in shop, or a domain of τ²-bench."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the domain's tools, in OpenAI's form."""
        ...

    @property
    def end(self) -> End | None:
        """The reason why the conversation ended, or None while it goes on."""
        ...

    async def start(self) -> list[Message]:
        """The policy and the customer's first message."""
        ...

    async def step(self, content: str, calls: list[ToolCall]) -> list[Message]:
        """The customer's answer to a message of the agent, or the results of its calls."""
        ...

    async def result(self) -> EpisodeResult:
        """The outcome; its reward is 0 unless the customer ended the conversation."""
        ...


class ShopEpisode:
    """A task of the built-in shop. If a step has calls, its message is not delivered, as in τ²-bench."""

    def __init__(self, task: Task, customer: Customer, *, max_steps: int = 30, max_errors: int = 10) -> None:
        self.end: End | None = None
        self._task, self._customer = task, customer
        self._max_steps, self._max_errors = max_steps, max_errors
        self._database = Database(task.data, TOOLS)
        self._said: list[str] = []
        self._num_steps = self._num_errors = 0

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the shop's tools."""
        return [tool.schema() for tool in TOOLS]

    async def start(self) -> list[Message]:
        """The policy and the customer's first message."""
        return [{"role": "system", "content": POLICY}, {"role": "user", "content": await self._customer.opening()}]

    async def step(self, content: str, calls: list[ToolCall]) -> list[Message]:
        """The customer's answer, or the results of the calls. The conversation must not have ended."""
        assert self.end is None, f"the conversation ended: {self.end}"
        self._num_steps += 1
        messages = [self._result(call) for call in calls] if calls else [await self._answer(content)]
        if self.end is None and self._num_errors >= self._max_errors:
            self.end = End.too_many_errors
        if self.end is None and self._num_steps >= self._max_steps:
            self.end = End.max_steps
        return messages

    async def result(self) -> EpisodeResult:
        """Reward 1 if the database equals that after the task's actions and all required words were said."""
        wanted = replayed(self._task.data, TOOLS, self._task.actions).hash()
        said = " ".join(self._said).lower()
        parts = {
            "database": float(self._database.hash() == wanted),
            "communicate": float(all(word.lower() in said for word in self._task.communicate)),
        }
        ended = self.end is End.customer_stop
        return EpisodeResult(reward=float(ended and all(parts.values())), parts=parts)

    def _result(self, call: ToolCall) -> Message:
        try:
            if call.error:
                raise ToolError(call.error)
            text = self._database.call(call.name, call.arguments)
        except ToolError as error:
            self._num_errors += 1
            text = f"Error: {error}"
        return {"role": "tool", "name": call.name, "content": text}

    async def _answer(self, content: str) -> Message:
        if content.strip():
            self._said.append(content)
        else:
            self._num_errors += 1
        answer = await self._customer.answer(content)
        if STOP in answer:
            self.end = End.customer_stop
        return {"role": "user", "content": answer}
