"""A served model as an agent sees it: `chat` with messages or `complete` with token ids; each call returns a `Turn`.

Sampled ids are the truth: they are kept as the server sent them and never tokenized again.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np

from vime.rollout.agent_clock import AgentClock
from vime.rollout.sampled import Call, Sampled
from vime.rollout.trace import Trace
from vime.rollout.traffic import Traffic
from vime.rollout.turn_log import TurnLog, call_key
from vime.serving.client import check_room
from vime.serving.reply import Listener
from vime.trajectory.aside import aside
from vime.trajectory.plain_text import render
from vime.types import Column, Integers, Message, Sampling, Turn

HEARD_TOKENS = 4
"""How many tokens a server sends at a time if somebody follows the reply."""


class ChatModel(Protocol):
    """A model that answers messages, as every model in `context.models` does."""

    name: str
    max_model_len: int

    @property
    def shows_tokens(self) -> bool:
        """Whether token ids are visible; behind a chat API they are not, and only `chat` works."""
        ...

    async def chat(self, messages: list[Message], *, max_tokens: int, tools: list[dict[str, Any]] | None = None) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long."""
        ...

    def as_baseline(self, sampling: Sampling, tokenizer: Callable[[], Any]) -> "TokenModel":
        """The model in the trained one's place: with its sampling, and with its tokenizer if it has none of its own."""
        ...


class TokenModel(ChatModel, Protocol):
    """A model that also takes token ids and returns them, as every model served by vLLM does."""

    tokenizer: Any
    trace: Trace

    async def complete(self, token_ids: Integers, *, max_tokens: int, stop: tuple[str, ...] = ()) -> Turn:
        """The continuation of a prompt given as token ids, until it contains one of the texts in `stop`."""
        ...

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation with the prompt of the next reply."""
        ...

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the chat template is given besides the messages."""
        ...


class SamplingClient(Protocol):
    """Tokens in, tokens out (`vime.serving.client.TokenClient`)."""

    async def generate(
        self,
        token_ids: Integers,
        *,
        sampling: dict[str, Any],
        session_id: str,
        request_id: str,
        minimum_version: int,
        listener: Listener | None,
    ) -> Turn: ...


@dataclass(kw_only=True, slots=True)
class ServedModel:
    """A `TokenModel`: one model that vLLM serves, bound to one rollout.

    Example: `turn = await context.models["actor"].chat([{"role": "user", "content": "2+2?"}], max_tokens=8)`.
    """

    client: SamplingClient
    tokenizer: Any
    max_model_len: int
    temperature: float
    top_p: float
    session: str
    sampling: dict[str, float] = field(default_factory=dict)
    """Further sampling parameters by vLLM's names, for example `{"top_k": 20}`."""
    minimum_version: int = 0
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    name: str = "actor"
    trace: Trace = field(default_factory=Trace)
    turns: TurnLog = field(default_factory=TurnLog)
    traffic: Traffic | None = None
    """The gate that a weight sync closes, for the trained model."""
    clock: AgentClock = field(default_factory=AgentClock)
    """Measures the agent's time."""
    sampled: Sampled | None = None
    """Keeps everything that is sampled, for the trained model."""
    _calls: "count[int]" = field(default_factory=count)

    @property
    def shows_tokens(self) -> bool:
        """True."""
        return True

    async def chat(self, messages: list[Message], *, max_tokens: int, tools: list[dict[str, Any]] | None = None) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long; `tools` go into the chat template.

        Raises ServerError when no server answers within the time limit, ContextFullError if the reply has no room.
        """
        num_characters = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str))
        return await self.complete(await aside(num_characters, self.render, messages, tools=tools), max_tokens=max_tokens)

    async def complete(
        self,
        token_ids: Integers,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        constraint: dict[str, Any] | None = None,
        hear: Callable[[Turn], None] | None = None,
    ) -> Turn:
        """The continuation of a prompt given as token ids, until it contains one of the texts in `stop`.

        `constraint` says what may be sampled, as `structured_outputs` of vLLM's sampling parameters. `hear` is called with each
        piece of the reply as it arrives, a few tokens at a time. Raises ContextFullError if the reply has no room.
        """
        if max_tokens < 1:  # the client checks other limits
            check_room(len(token_ids), max_tokens, max_model_len=self.max_model_len, name=self.name)
        prompt = Column(token_ids, np.int32)
        key = call_key(self.name, prompt, max_tokens)
        seed, turn = self.turns.seed(key), self.turns.find(key)
        more = ({"stop": list(stop)} if stop else {}) | ({"structured_outputs": constraint} if constraint else {})
        call = Call(prompt, self.clock, self.traffic, hear=hear)
        if self.sampled is not None:
            self.sampled.add(call, tokenizer=self.tokenizer)
        if turn is None:
            turn = replace(await self._sample(call, max_tokens, seed, more), key=key)
        else:
            self.trace.count("turns_kept")
        self.turns.keep(turn)
        call.finish(turn)
        text = await aside(len(turn.output_ids), self.tokenizer.decode, turn.output_ids, skip_special_tokens=True)
        return replace(turn, prompt_ids=prompt, message={"role": "assistant", "content": text})

    def as_baseline(self, sampling: Sampling, tokenizer: Callable[[], Any]) -> "ServedModel":
        """The model with the sampling that the trained one would have here."""
        return replace(self, temperature=sampling.temperature, top_p=sampling.top_p, sampling={})

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation with the prompt of the next reply.

        Control tokens that are written in a message stay plain text (`vime.trajectory.plain_text`).
        """
        return render(self.tokenizer, messages, **self.template_args(tools))

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the chat template is given besides the messages."""
        return self.chat_template_args | ({"tools": tools} if tools else {})

    async def _sample(self, call: Call, max_tokens: int, seed: int | None, more: dict[str, Any]) -> Turn:
        arrived = time.time()
        sampling: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p, **self.sampling, **more}
        sampling |= {} if seed is None else {"seed": seed}
        sampling |= {"stream_interval": HEARD_TOKENS} if call.is_heard else {}
        async with self.traffic.call(self.clock) if self.traffic is not None else nullcontext() as has_waited:
            if has_waited:
                self.trace.add("weight sync", kind="waiting", started=arrived)
            with self.trace.span(self.name, kind="generation", prompt_tokens=len(call.prompt_ids)) as details:
                try:
                    turn = await self.client.generate(
                        call.prompt_ids,
                        sampling={**sampling, "max_tokens": max_tokens},
                        session_id=self.session,
                        request_id=f"{self.session}-{next(self._calls)}",
                        minimum_version=self.minimum_version,
                        listener=call,
                    )
                finally:
                    call.ended()
                details |= {"tokens": len(turn.output_ids), "weight_versions": sorted(set(turn.weight_versions))}
        return turn
