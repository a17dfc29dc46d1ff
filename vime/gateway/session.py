"""`AgentSession`: one agent's access to one model, behind a URL of its own; keeps everything that was sampled through it.

async with context.session("actor") as session:
    await run_my_agent(base_url=session.openai_url, api_key=session.secret)
return session.samples(sample)
"""

import asyncio
import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from vime.errors import SampleError
from vime.gateway.chat import ChatAnswer, ChatRequest, Refused, Usage
from vime.gateway.pending_call import PendingCall
from vime.gateway.reading import Reader, Reading
from vime.serving.client import BadRequestError
from vime.tasks import together
from vime.trajectory.aside import aside
from vime.trajectory.template import ChatTemplate
from vime.trajectory.tree import RenderedPrompt, Trajectory
from vime.types import Integers, Message, Sample, Turn

SECRET_BYTES = 24
SESSION_OVER = "session_over"
CONTEXT_FULL = "context_length_exceeded"


class Model(Protocol):
    """What a session needs of a served model (`vime.rollout.model.ServedModel`)."""

    name: str
    tokenizer: Any
    max_model_len: int

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]: ...

    async def complete(self, token_ids: Integers, *, max_tokens: int, stop: tuple[str, ...] = (), hear: Any = None) -> Turn: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Where a session ends by itself; None for no limit."""

    num_calls: int | None = None
    num_tokens: int | None = None
    """Sampled tokens, of all calls together."""


@dataclass(kw_only=True, slots=True)
class AgentSession:
    """One agent's access to one model."""

    model: Model
    reader: Reader
    url: str = ""
    limits: Limits = field(default_factory=Limits)
    fork: bool = True
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    trajectory: Trajectory = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    """Calls, sampled tokens, retries and refusals."""
    over: str = ""
    """Why no further call is answered; empty while the session is open."""
    failure: Exception | None = None
    """Why a call could not be answered, if it was neither the agent's fault nor its end: the attempt is then lost."""
    _calls: dict[bytes, PendingCall] = field(default_factory=dict)
    """The latest call of each request."""
    _under_way: set[PendingCall] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Begins an empty trajectory."""
        self.trajectory = Trajectory(ChatTemplate(self.model.tokenizer, self.model.template_args(None)), fork=self.fork)

    @property
    def openai_url(self) -> str:
        """`OPENAI_BASE_URL` of clients that speak Chat Completions or Responses."""
        return f"{self.url}/v1"

    def call(self, route: str, body: bytes, request: ChatRequest, *, retried: bool) -> PendingCall:
        """The call of a request: a new one, or that of the same request if its client is a client's retry.

        A request is a retry if the client says so (`retried`), or if the same one was sent before and its connection was lost.
        Every other request is new, also if it is the same as one before.
        """
        digest = hashlib.blake2b(route.encode() + b"\0" + body, digest_size=16).digest()
        held = self._calls.get(digest)
        if held is not None and (retried or held.is_broken):
            self.counts["retries"] += 1
            return held
        self._check()
        self.counts["calls"] += 1
        call = self._calls[digest] = PendingCall()
        self._under_way = {held for held in self._under_way if not held.is_over} | {call}
        call.start(self._answer(request, call))
        return call

    def end(self, reason: str = "the session is over") -> None:
        """Refuses all further calls, and gives up those under way."""
        self.over = self.over or reason
        for call in self._under_way:
            call.cancel()

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """Trainable sequences that contain every sampled token that a client received exactly once.

        Raises SampleError if the agent never called its model: its base URL is wrong, or it broke before. Raises the error of a
        call that could not be answered, ServerError for one, whatever the agent made of it: the rollout is then tried again.
        """
        if self.failure is not None:
            raise self.failure
        if not self.counts["calls"]:
            raise SampleError(
                f"the agent made no call to {self.model.name}: did it start, and does it use session.openai_url as its base URL?"
            )
        return self.trajectory.samples(template, **metadata)

    def _check(self) -> None:
        limits = self.limits
        if limits.num_calls is not None and self.counts["calls"] >= limits.num_calls:
            self.over = self.over or f"the session's limit of {limits.num_calls} calls is reached"
        if limits.num_tokens is not None and self.counts["tokens"] >= limits.num_tokens:
            self.over = self.over or f"the session's limit of {limits.num_tokens} sampled tokens is reached"
        if self.over:
            self.counts["refused"] += 1
            raise Refused(self.over, code=SESSION_OVER)

    async def _answer(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        try:
            return await self._answers(request, call)
        except Refused:
            raise
        except Exception as error:  # whatever it is, no agent can be blamed for it
            self.failure = error
            raise

    async def _answers(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        if request.tools and request.tool_choice != "none" and not self.reader.reads_tools:
            raise SampleError(f"the agent offers tools, but {self.model.name} has no parser of tool calls: set its tool_parser")
        try:
            async with self._lock:  # a trajectory is changed by one thread at a time
                size = self.trajectory.num_new_characters(request.messages)
                prompts = [
                    await aside(size, self.trajectory.prompt, request.messages, request.tools) for _ in range(request.num_answers)
                ]
        except TemplateError as error:
            raise Refused(f"the chat template of {self.model.name} refuses these messages: {error}") from error
        max_tokens = self._room(request, prompts[0])
        answers = [self._sample(request, prompt, call, place, max_tokens) for place, prompt in enumerate(prompts)]
        return await together(answers)

    def _room(self, request: ChatRequest, prompt: RenderedPrompt) -> int:
        """How many tokens may be sampled. Raises Refused if the context is full."""
        room, wanted = self.model.max_model_len - len(prompt.ids), request.max_tokens
        if room < 1:
            raise Refused(
                f"prompt is too long: {len(prompt.ids)} tokens > {self.model.max_model_len} maximum "
                f"(the context length of {self.model.name})",
                code=CONTEXT_FULL,
            )
        return min(room, wanted) if wanted else room

    async def _sample(
        self, request: ChatRequest, prompt: RenderedPrompt, call: PendingCall, place: int, max_tokens: int
    ) -> ChatAnswer:
        reading = self.reader.begin(request, prompt.ids)
        say, num_heard = partial(call.say, place), 0

        def hear(piece: Turn) -> None:
            nonlocal num_heard
            num_heard += len(piece.output_ids)
            for delta in reading.feed(piece.output_ids):
                say(delta)

        is_heard = request.stream and not request.stop  # a stop text is cut off at the end, so nothing is said before
        try:
            turn = await self.model.complete(
                prompt.ids, max_tokens=max_tokens, stop=request.stop, hear=hear if is_heard else None
            )
        except BadRequestError as error:
            raise Refused(str(error)) from error
        turn = replace(turn, prompt_ids=[])  # the tree holds them; kept with every call they would grow with the calls' square
        self.counts["tokens"] += len(turn.output_ids)
        stopped = turn.finish_reason == "stop"
        if is_heard:
            last = reading.finish(turn.output_ids[num_heard:], stopped=stopped)
        else:
            last = await aside(len(turn.output_ids), partial(reading.whole, stopped=stopped), turn.output_ids)
        message = reading.message
        await self._record(prompt, turn, message, call)
        for delta in last:
            say(delta)
        finish_reason = "tool_calls" if message.get("tool_calls") and stopped else turn.finish_reason
        return ChatAnswer(message=message, finish_reason=finish_reason, turn=turn, usage=_usage(prompt, turn, reading))

    async def _record(self, prompt: RenderedPrompt, turn: Turn, message: Message, call: PendingCall) -> None:
        async with self._lock:
            ended = bool(turn.output_ids) and turn.output_ids[-1] in self.model.tokenizer.all_special_ids
            reply = self.trajectory.record(prompt, turn, message, ended=ended)
            reply.delivered = call.is_delivered
            call.replies.append(reply)


def _usage(prompt: RenderedPrompt, turn: Turn, reading: Reading) -> Usage:
    return Usage(
        prompt_tokens=len(prompt.ids),
        cached_tokens=len(prompt.ids) - len(prompt.environment) if prompt.parent is not None else 0,
        completion_tokens=len(turn.output_ids),
        reasoning_tokens=reading.num_reasoning_tokens(turn.output_ids),
    )
