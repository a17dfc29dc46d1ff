"""τ²-bench (arXiv 2506.07982): customers of an airline, a shop and a telephone company, whom a simulated user plays.

    +benchmark=tau2 method.settings.user.model=openai/user 'method.settings.user.arguments={api_base: "http://127.0.0.1:8003/v1"}'

Tasks, tools, simulated user and evaluator are those of the package (`agentic.toolorchestra.tau2` says how it is installed); the
model calls tools and talks to the customer, for as many turns as `method.max_turns`. Tasks whose reward asks a judge are in the
benchmark only with `judge.model`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agentic.toolorchestra.settings import EndpointConfig
from agentic.toolorchestra.tau2 import DOMAINS, INSTALL, load_tasks, rows, why_absent
from agentic.toolorchestra.tau2_episode import Tau2Episode
from agentic.toolorchestra.tau2_splits import SPLITS
from agentic.toolorchestra.tool_calls import ToolCall
from vime.data.split import Split
from vime.environments.environment import MissingPackageError, Observation, Outcome, Reply, Row
from vime.errors import ConfigError, Problem
from vime.types import Message


class Tau2:
    """Domains of τ²-bench; `user` and `judge` name models for litellm, `{model: …, arguments: {…}}`."""

    seats = ("agent",)
    step_seconds = 3600.0
    """A step may wait for the customer's model, which is not the agent's fault."""

    def __init__(
        self,
        *,
        user: Mapping[str, Any],
        judge: Mapping[str, Any] | None = None,
        domains: list[str] | None = None,
    ) -> None:
        """Raises ConfigError for other domains, or if the package is not installed."""
        self.user = EndpointConfig(**user)
        self.judge = EndpointConfig(**judge) if judge and judge.get("model") else None
        self.domains = domains or list(SPLITS["base"])
        if wrong := [domain for domain in self.domains if domain not in DOMAINS]:
            remedy = f"τ²-bench has no such domain: use {', '.join(DOMAINS)}"
            raise ConfigError([Problem(key="method.settings.domains", value=wrong, remedy=remedy)])
        if reason := why_absent():
            remedy = reason if INSTALL in reason else f"{reason}: {INSTALL}"
            raise MissingPackageError([Problem(key="method.environment", value="tau2", remedy=remedy)])

    def rows(self, *, split: Split, num_items: int | None, seed: int) -> Iterable[Row]:
        """The tasks of the base split, domain by domain. Raises ConfigError without a model for the customer."""
        if not self.user.model:
            remedy = "name the model that plays the customer, for example openai/user, with its api_base in user.arguments"
            raise ConfigError([Problem(key="method.settings.user.model", value="", remedy=remedy)])
        return rows(num_items=num_items, seed=seed, domains=self.domains, without_judge=self.judge is None)

    def open(self, row: Row) -> "Conversation":
        """The conversation about a task."""
        task = next(task for task in load_tasks(row["domain"]) if task.id == row["task_id"])
        return Conversation(Tau2Episode(row["domain"], task, user=self.user, judge=self.judge))


class Conversation:
    """A conversation with a customer, until one of the two ends it."""

    def __init__(self, episode: Any) -> None:
        self._episode, self._new = episode, list[Message]()
        self._has_begun = False

    async def observe(self) -> Observation | None:
        """The policy and the customer's first message, later the results of calls, or the customer's answer."""
        if not self._has_begun:
            self._new, self._has_begun = await self._episode.start(), True
        return Observation(content=self._new, tools=self._episode.tools) if self._episode.end is None else None

    async def act(self, reply: Reply) -> None:
        """Takes a message to the customer, or calls of tools; arguments that are no object are given as none."""
        calls = [ToolCall(name=call["function"]["name"], arguments=_arguments(call)) for call in reply.tool_calls]
        self._new = await self._episode.step(reply.text, calls)

    async def outcome(self) -> Outcome:
        """The package's reward; 0 for a conversation that was left at a limit."""
        if self._episode.end is None:
            return Outcome(rewards=0.0, metrics={"strict": 0.0})
        result = await self._episode.result()
        return Outcome(rewards=result.reward, metrics={"strict": result.reward, **result.parts})


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    given: Any = call["function"]["arguments"]
    try:
        read = orjson.loads(given or "{}") if isinstance(given, str) else given
    except orjson.JSONDecodeError:
        read = {}
    return read if isinstance(read, dict) else {}
