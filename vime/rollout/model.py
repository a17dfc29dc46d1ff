"""A served model as an agent sees it: `chat` with messages or `complete` with token ids; each call returns a `Turn`.

Sampled ids are the truth: they are kept as the server sent them and never tokenized again.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from vime.rollout.agent_clock import AgentClock
from vime.rollout.aside import aside
from vime.rollout.plain_text import control_tokens
from vime.rollout.progress import SavedTurn
from vime.rollout.sampled import Sampled, SampledCall
from vime.rollout.trace import Trace
from vime.rollout.traffic import Traffic
from vime.rollout.turn_log import TurnLog, call_key
from vime.serving.reply import Listener
from vime.types import Message, Turn

WAITING_SECONDS = 1e-3
"""Less than this at the gate is not waiting."""


class Generation(Protocol):
    """What the token client returns for one request; ids, logprobs and versions have one entry per sampled token."""

    @property
    def output_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def weight_versions(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class Client(Protocol):
    """Token in, token out (`vime.serving.client.TokenClient`)."""

    async def generate(
        self,
        token_ids: list[int],
        *,
        sampling: dict[str, Any],
        session_id: str,
        request_id: str,
        minimum_version: int,
        listener: Listener | None,
    ) -> Generation: ...


class Call:
    """What a model does while a call is under way: notes the tokens that come, and stops the agent's clock during a loss."""

    def __init__(self, sampled: SampledCall, clock: AgentClock, traffic: Traffic | None) -> None:
        self._sampled, self._clock, self._traffic = sampled, clock, traffic
        self._is_lost = False

    def received(self, output_ids: list[int], logprobs: list[float], weight_versions: list[int]) -> None:
        """Tokens have come."""
        self._sampled.extend(output_ids, logprobs, weight_versions)
        self.ended()

    def lost(self) -> None:
        """The server is lost: until tokens come again, the agent waits through no fault of its own."""
        if not self._is_lost:
            self._clock.stop()
        self._is_lost = True

    def ended(self) -> None:
        """Nobody waits for a lost server any more."""
        if self._is_lost:
            self._clock.go()
        self._is_lost = False

    def is_paused(self) -> bool:
        """Whether servers are silent because of a weight sync."""
        return self._traffic is not None and self._traffic.is_paused()


@dataclass(kw_only=True, slots=True)
class Model:
    """One served model bound to one rollout.

    Example: `turn = await context.models["actor"].chat([{"role": "user", "content": "2+2?"}], max_tokens=8)`.
    """

    client: Client
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
    """The gate of the trained model; other models have none."""
    clock: AgentClock = field(default_factory=AgentClock)
    """The agent's time."""
    sampled: Sampled | None = None
    """Keeps what the trained model samples; other models have none."""
    _calls: "count[int]" = field(default_factory=count)

    async def chat(self, messages: list[Message], *, max_tokens: int, tools: list[dict[str, Any]] | None = None) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long; `tools` go into the chat template.

        Raises ServerError when no server answers within the time limit.
        """
        num_characters = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), str))
        return await self.complete(await aside(num_characters, self.render, messages, tools=tools), max_tokens=max_tokens)

    async def complete(self, token_ids: list[int], *, max_tokens: int) -> Turn:
        """The continuation of a prompt given as token ids."""
        key = call_key(self.name, token_ids, max_tokens)
        seed, saved = self.turns.seed(key), self.turns.find(key)
        call = self.sampled.begin(token_ids, tokenizer=self.tokenizer) if self.sampled else SampledCall(prompt_ids=token_ids)
        if saved is None:
            saved = await self._sample(key, call, max_tokens, seed)
        else:
            self.trace.count("turns_kept")
        self.turns.keep(saved)
        output_ids, logprobs, versions = list(saved.output_ids), list(saved.logprobs), list(saved.weight_versions)
        call.output_ids, call.logprobs, call.weight_versions = output_ids, logprobs, versions
        text = await aside(len(output_ids), self.tokenizer.decode, output_ids, skip_special_tokens=True)
        return Turn(
            prompt_ids=token_ids,
            output_ids=output_ids,
            logprobs=logprobs,
            weight_versions=versions,
            finish_reason=saved.finish_reason,
            seconds=saved.seconds,
            message={"role": "assistant", "content": text},
        )

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation with the prompt of the next reply.

        Control tokens that are written in a message stay plain text (`vime.rollout.plain_text`).
        """
        tokens = control_tokens(self.tokenizer)
        return tokens.encode(tokens.segments(messages, add_generation_prompt=True, **self.template_args(tools)))

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the chat template is given besides the messages."""
        return self.chat_template_args | ({"tools": tools} if tools else {})

    async def _sample(self, key: str, sampled: SampledCall, max_tokens: int, seed: int | None) -> SavedTurn:
        arrived, call = time.time(), Call(sampled, self.clock, self.traffic)
        sampling = {"temperature": self.temperature, "top_p": self.top_p, **self.sampling}
        seeded = {} if seed is None else {"seed": seed}
        async with self.traffic.call(self.clock) if self.traffic is not None else nullcontext():
            if time.time() - arrived > WAITING_SECONDS:
                self.trace.add("weight sync", kind="waiting", started=arrived)
            with self.trace.span(self.name, kind="generation", prompt_tokens=len(sampled.prompt_ids)) as details:
                try:
                    generation = await self.client.generate(
                        sampled.prompt_ids,
                        sampling={**sampling, **seeded, "max_tokens": max_tokens},
                        session_id=self.session,
                        request_id=f"{self.session}-{next(self._calls)}",
                        minimum_version=self.minimum_version,
                        listener=call,
                    )
                finally:
                    call.ended()
                versions = sorted(set(generation.weight_versions))
                details |= {"tokens": len(generation.output_ids), "weight_versions": versions}
        return SavedTurn(
            key=key,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            weight_versions=generation.weight_versions,
            finish_reason=generation.finish_reason,
            seconds=generation.seconds,
        )
