"""A served model as an agent sees it: a `conversation`, or a single call by `chat` with messages or `complete` with token ids.

Sampled ids are the truth: they are kept as the server sent them and never tokenized again. Every call is in the rollout's
trajectory from the moment it is sent.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from vime.chat.agent_clock import AgentClock
from vime.chat.conversation import Conversation
from vime.chat.reply_reader import ReplyReader, check_parser
from vime.chat.trace import Trace
from vime.chat.traffic import Traffic
from vime.errors import BadRequestError, ServerError
from vime.serving.client import check_room
from vime.trajectory.aside import aside
from vime.trajectory.messages import ASSISTANT
from vime.trajectory.plain_text import render
from vime.trajectory.trajectory import Call, CallPrompt, Trajectory, call_key
from vime.types import Integers, Message, Sampling, Turn

HEARD_TOKENS = 4
"""Number of tokens that a server sends at a time if a listener follows the reply."""


@dataclass(kw_only=True, slots=True)
class ServedModel:
    """One model, bound to one rollout: vLLM serves it, or an endpoint with a chat API, whose tokens are not known.

    Example: `turn = await context.models["actor"].chat([{"role": "user", "content": "2+2?"}], max_tokens=8)`.
    """

    client: Any
    """Tokens in, tokens out (`vime.serving.client.TokenClient`), or messages (`vime.serving.external.ChatClient`)."""
    max_model_len: int
    tokenizer: Any = None
    """Its own tokenizer. An endpoint in the trained model's place has the trained model's, to count and to cut."""
    temperature: float = 1.0
    top_p: float = 1.0
    session: str = ""
    sampling: dict[str, float] = field(default_factory=dict)
    """Further sampling parameters by vLLM's names, for example `{"top_k": 20}`; all that is sent to an endpoint, whose
    `chat.body` wins over them."""
    minimum_version: int = 0
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    name: str = "actor"
    shows_tokens: bool = True
    """False for an endpoint with a chat API: only `chat` and conversations of messages work, and nothing of it is trained."""
    trace: Trace = field(default_factory=Trace)
    trajectory: Trajectory = field(default_factory=Trajectory)
    """Keeps every call."""
    attempt: int = 0
    """The attempt of the rollout to which its calls belong."""
    trained: bool = True
    """True if its replies are part of the rollout's samples: it is the trained model, or a baseline in its place."""
    records_experts: bool = False
    """True if the experts of every token of its calls are recorded."""
    traffic: Traffic | None = None
    """The gate that a weight sync closes, for the trained model."""
    clock: AgentClock = field(default_factory=AgentClock)
    """Measures the agent's time."""
    load_reader: Callable[[], Awaitable[ReplyReader]] | None = None
    """Loads vLLM's parsers of its replies; None if none are named."""
    _calls: "count[int]" = field(default_factory=count)

    def conversation(
        self,
        messages: list[Message] | str,
        *,
        tools: list[dict[str, Any]] | None = None,
        fork: bool = True,
        parses: bool | None = None,
    ) -> Conversation:
        """A conversation that begins with these messages, or a plain text for the model to continue; see `Conversation`."""
        return Conversation(self, messages, tools=tools, fork=fork, parses=parses)

    @property
    def untrained(self) -> "ServedModel":
        """The same model, whose calls are not part of the rollout's samples, for example the trained model as a judge."""
        sampling = {name: value for name, value in self.sampling.items() if name != "logprobs"}
        return replace(self, trained=False, records_experts=False, sampling=sampling)

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        tools: list[dict[str, Any]] | None = None,
    ) -> Turn:
        """The reply to messages, at most `max_tokens` tokens long; `tools` go into the chat template.

        Raises ServerError when no server answers within the time limit, ContextFullError if the reply has no room,
        BadRequestError when an endpoint refuses.
        """
        if self.shows_tokens:
            size = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str))
            return await self.complete(await aside(size, self.render, messages, tools=tools), max_tokens=max_tokens)
        return (await self.ask(messages, max_tokens=max_tokens, tools=tools)).turn

    async def ask(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        tools: list[dict[str, Any]] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Call:
        """The call of an endpoint with a chat API; `body` holds further fields of the request. Raises what `chat` raises."""
        call = self._begin(CallPrompt.behind(None, []))
        with self.trace.span(self.name, kind="generation"):
            sampling = self.sampling | (body or {})
            turn = await self.client.chat(messages, max_tokens=max_tokens, tools=tools, sampling=sampling)
        call.finish(turn, turn.message)
        return call

    async def complete(
        self,
        token_ids: Integers,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        constraint: dict[str, Any] | None = None,
    ) -> Turn:
        """The continuation of a prompt given as token ids, until it contains one of the texts in `stop`; see `call`."""
        prompt = self.trajectory.continued(token_ids, model=self.name)
        call = await self.call(prompt, max_tokens=max_tokens, stop=stop, constraint=constraint)
        text = await aside(len(call.turn.output_ids), call.decoded, call.turn.output_ids)
        call.message = {"role": ASSISTANT, "content": text}
        return replace(call.turn, prompt_ids=prompt.ids, message=call.message)

    async def call(
        self,
        prompt: CallPrompt,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        constraint: dict[str, Any] | None = None,
        hear: Callable[[Turn], None] | None = None,
    ) -> Call:
        """Samples the reply to a prompt of the rollout's trajectory.

        `constraint` limits the tokens that may be sampled, as `structured_outputs` of vLLM's sampling parameters. `hear` is
        called with each piece of the reply as it arrives, a few tokens at a time. Raises ContextFullError if the reply has no
        room, BadRequestError for a model behind a chat API, ServerError when no server answers within the time limit.
        """
        if not self.shows_tokens:
            raise BadRequestError(f"{self.name} is an endpoint with a chat API: call chat(messages), not complete(token_ids)")
        if max_tokens < 1:  # the client checks other limits
            check_room(len(prompt.ids), max_tokens, max_model_len=self.max_model_len, name=self.name)
        key = call_key(self.name, prompt.ids, max_tokens)
        seed, turn = self.trajectory.seed(key), self.trajectory.recall(key)
        more = ({"stop": list(stop)} if stop else {}) | ({"structured_outputs": constraint} if constraint else {})
        call = self._begin(prompt)
        if turn is None or not self._has_recorded(turn, prompt):
            turn = await self._sample(call, prompt, max_tokens, seed, more, hear)
        else:
            self.trace.count("turns_kept")
        call.finish(turn, key=key)
        return call

    def _has_recorded(self, turn: Turn, prompt: CallPrompt) -> bool:
        """True if a kept turn has all that is recorded of new ones; a run that did not record it may have kept the turn."""
        has_experts = turn.routed_experts is not None and turn.routed_experts.start <= _num_routed(prompt)
        return turn.num_logprobs >= self.sampling.get("logprobs", 0) and (has_experts or not self.records_experts)

    async def reader(self, *, reads_calls: bool = False) -> ReplyReader | None:
        """The reader of its replies, with vLLM's parsers; None if it has none. The first one of a worker imports them.

        Raises ConfigError if it is to read tool calls and cannot, or if the parsers do not fit the model.
        """
        if self.load_reader is None:
            reader = None
        else:
            with self.clock.stopped():
                reader = await self.load_reader()
        if reads_calls:
            check_parser(reader, self.name)
        return reader

    def as_baseline(self, sampling: Sampling, tokenizer: Callable[[], Any]) -> "ServedModel":
        """The model as a baseline in the trained model's place, with the sampling that the trained model would have here.

        An endpoint counts and cuts in the tokens of the trained model's `tokenizer`, so that both get the same sections of a
        document.
        """
        if self.shows_tokens:
            return replace(
                self, temperature=sampling.temperature, top_p=sampling.top_p, sampling={}, records_experts=False, trained=True
            )
        own = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        return replace(self, sampling=own, tokenizer=tokenizer(), trained=True)

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation with the prompt of the next reply.

        Control tokens that are written in a message stay plain text (`vime.trajectory.plain_text`). Raises ServerError for an
        endpoint whose tokens are not known.
        """
        if self.tokenizer is None:
            raise ServerError(f"{self.name} is an endpoint with a chat API: its tokens are not known")
        return render(self.tokenizer, messages, **self.template_args(tools))

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """The arguments of the chat template besides the messages."""
        return self.chat_template_args | ({"tools": tools} if tools else {})

    def _begin(self, prompt: CallPrompt) -> Call:
        return self.trajectory.begin(
            prompt, model=self.name, tokenizer=self.tokenizer, trained=self.trained, attempt=self.attempt
        )

    async def _sample(
        self,
        call: Call,
        prompt: CallPrompt,
        max_tokens: int,
        seed: int | None,
        more: dict[str, Any],
        hear: Callable[[Turn], None] | None,
    ) -> Turn:
        arrived, prompt_ids = time.time(), prompt.ids
        options = {"experts_from": _num_routed(prompt)} if self.records_experts else {}
        sampling: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p, **self.sampling, **more}
        sampling |= {} if seed is None else {"seed": seed}
        sampling |= {} if hear is None else {"stream_interval": HEARD_TOKENS}
        listener = Listening(call, self.clock, self.traffic, hear)
        async with self.traffic.call(self.clock) if self.traffic is not None else nullcontext() as has_waited:
            if has_waited:
                self.trace.add("weight sync", kind="waiting", started=arrived)
            with self.trace.span(self.name, kind="generation", prompt_tokens=len(prompt_ids)) as details:
                try:
                    turn = await self.client.generate(
                        prompt_ids,
                        sampling={**sampling, "max_tokens": max_tokens},
                        session_id=self.session,
                        request_id=f"{self.session}-{next(self._calls)}",
                        minimum_version=self.minimum_version,
                        listener=listener,
                        **options,
                    )
                finally:
                    listener.ended()
                details |= {"tokens": len(turn.output_ids), "weight_versions": sorted(set(turn.weight_versions))}
        return turn


def _num_routed(prompt: CallPrompt) -> int:
    """Tokens at the beginning of a prompt whose experts the calls before it have recorded."""
    return 0 if prompt.parent is None else prompt.parent.num_routed


class Listening:
    """Follows a request (`vime.serving.reply.Listener`); stops the agent's clock while the server is lost."""

    def __init__(self, call: Call, clock: AgentClock, traffic: Traffic | None, hear: Callable[[Turn], None] | None) -> None:
        self._call, self._clock, self._traffic, self._hear = call, clock, traffic, hear
        self._is_lost = False

    def received(self, piece: Turn) -> None:
        """Records tokens that have arrived."""
        self._call.received(piece)
        self.ended()
        if self._hear is not None:
            self._hear(piece)

    def lost(self) -> None:
        """Stops the clock until tokens arrive again: the server is lost, through no fault of the agent."""
        if not self._is_lost:
            self._clock.stop()
        self._is_lost = True

    def ended(self) -> None:
        """Restarts the clock if it was stopped: no lost server is waited for any more."""
        if self._is_lost:
            self._clock.go()
        self._is_lost = False

    def took(self, seconds: float) -> None:
        """Counts seconds that have not passed as the agent's time, for a rehearsal."""
        self._clock.advance(seconds)

    def is_paused(self) -> bool:
        """True if servers are silent because of a weight sync."""
        return self._traffic is not None and self._traffic.is_paused()
