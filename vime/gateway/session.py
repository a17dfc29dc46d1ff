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
from vime.gateway.limits import Limits
from vime.gateway.pending_call import PendingCall
from vime.gateway.reading import Reader
from vime.serving.client import BadRequestError
from vime.tasks import together
from vime.trajectory.aside import aside
from vime.trajectory.template import ChatTemplate
from vime.trajectory.tree import RenderedPrompt, Trajectory
from vime.types import Integers, Message, Sample, StopReason, Turn

SECRET_BYTES = 24
SESSION_OVER = "session_over"
CONTEXT_FULL = "context_length_exceeded"


class Model(Protocol):
    """What a session needs of a served model (`vime.rollout.model.ServedModel`)."""

    name: str
    tokenizer: Any
    max_model_len: int

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]: ...

    async def complete(
        self,
        token_ids: Integers,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        constraint: dict[str, Any] | None = None,
        hear: Any = None,
    ) -> Turn: ...


@dataclass(kw_only=True, slots=True)
class AgentSession:
    """One agent's access to one model."""

    model: Model
    reader: Reader
    url: str = ""
    limits: Limits = field(default_factory=Limits)
    fork: bool = True
    constrains: bool = False
    """Whether a client may constrain what is sampled: structured output, and calls that must be made. The logprobs are then not
    those of the trainer, so the trained model cannot be constrained in training."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    trajectory: Trajectory = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    """Calls, sampled tokens, retries and refusals."""
    over: str = ""
    """Why no further call is answered; empty while the session is open."""
    stop_reason: StopReason = StopReason.ANSWERED
    """The limit that ended the agent, if one did; a full context is one unless the agent went on with less."""
    failure: Exception | None = None
    """Why a call could not be answered, if it was neither the agent's fault nor its end: the attempt is then lost."""
    asked_sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the agent asked for; the run's are used in their place."""
    notes: set[str] = field(default_factory=set)
    """What of its requests was left out."""
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

    @property
    def anthropic_url(self) -> str:
        """`ANTHROPIC_BASE_URL` of clients that speak Messages."""
        return self.url

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
        self._check_constraint(request)
        self.counts["calls"] += 1
        self.asked_sampling |= request.sampling
        self.notes |= set(request.notes)
        call = self._calls[digest] = PendingCall()
        self._under_way = {held for held in self._under_way if not held.is_over} | {call}
        call.start(self._answer(request, call))
        return call

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a request has."""
        self._check()
        return len((await self._prompts(request, count=True))[0].ids)

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
        if self.asked_sampling:
            metadata = {"asked_sampling": self.asked_sampling, **metadata}
        samples = self.trajectory.samples(template, **metadata)
        if samples and self.stop_reason is not StopReason.ANSWERED:
            samples[-1].stop_reason = self.stop_reason
        return samples

    def _check(self) -> None:
        reached = self.limits.reached(self.counts)
        if reached is not None and not self.over:
            self.over, self.stop_reason = reached
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
        if request.offered and not self.reader.reads_tools:
            raise SampleError(f"the agent offers tools, but {self.model.name} has no parser of tool calls: set its tool_parser")
        prompts = await self._prompts(request)
        call.usage = _usage(prompts[0])
        max_tokens = self._room(request, prompts[0])
        answers = [self._sample(request, prompt, call, place, max_tokens) for place, prompt in enumerate(prompts)]
        return await together(answers)

    async def _prompts(self, request: ChatRequest, *, count: bool = False) -> list[RenderedPrompt]:
        """A prompt for each answer. Raises Refused if the chat template does not take the messages."""
        size = sum(len(message.get("content") or "") for message in request.messages)
        make = partial(self.trajectory.prompt, request.messages, request.tools, count=count)
        try:
            async with self._lock:  # a trajectory is changed by one thread at a time
                return [await aside(size, make) for _ in range(request.num_answers)]
        except TemplateError as error:
            raise Refused(f"the chat template of {self.model.name} refuses these messages: {error}") from error

    def _check_constraint(self, request: ChatRequest) -> None:
        if request.is_constrained and not self.constrains:
            what = "tool_choice" if request.response_format is None else "response_format"
            raise Refused(
                f"{what}: this model is being trained, so it samples freely: constrained, it has other logprobs than the trainer "
                "computes. Use tool_choice auto or none, and no structured output",
                code=f"unsupported_{what}",
            )

    def _room(self, request: ChatRequest, prompt: RenderedPrompt) -> int:
        """How many tokens may be sampled. Raises Refused if the context is full."""
        room, wanted = self.model.max_model_len - len(prompt.ids), request.max_tokens
        if room < 1:
            self.stop_reason = StopReason.TOKEN_LIMIT
            raise Refused(
                f"prompt is too long: {len(prompt.ids)} tokens > {self.model.max_model_len} maximum "
                f"(the context length of {self.model.name})",
                code=CONTEXT_FULL,
            )
        return min(room, wanted) if wanted else room

    async def _sample(
        self, request: ChatRequest, prompt: RenderedPrompt, call: PendingCall, place: int, max_tokens: int
    ) -> ChatAnswer:
        try:
            reading = self.reader.begin(request, prompt.ids)
        except ValueError as error:
            raise Refused(f"vLLM refuses the tools or the form of the answer: {error}") from error
        say, num_heard = partial(call.say, place), 0

        def hear(piece: Turn) -> None:
            nonlocal num_heard
            num_heard += len(piece.output_ids)
            for delta in reading.feed(piece.output_ids):
                say(delta)

        is_heard = request.stream and not request.stop  # a stop text is cut off at the end, so nothing is said before
        try:
            turn = await self.model.complete(
                prompt.ids,
                max_tokens=max_tokens,
                stop=request.stop,
                constraint=reading.constraint,
                hear=hear if is_heard else None,
            )
        except BadRequestError as error:
            raise Refused(str(error)) from error
        self.counts["tokens"] += len(turn.output_ids)
        self.stop_reason = self.stop_reason if self.over else StopReason.ANSWERED
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
        usage = replace(
            _usage(prompt),
            completion_tokens=len(turn.output_ids),
            reasoning_tokens=reading.num_reasoning_tokens(turn.output_ids),
        )
        return ChatAnswer(message=message, finish_reason=finish_reason, stop_text=reading.stop_text, turn=turn, usage=usage)

    async def _record(self, prompt: RenderedPrompt, turn: Turn, message: Message, call: PendingCall) -> None:
        async with self._lock:
            ended = bool(turn.output_ids) and turn.output_ids[-1] in self.model.tokenizer.all_special_ids
            reply = self.trajectory.record(prompt, turn, message, ended=ended)
            reply.delivered = call.is_delivered
            call.replies.append(reply)


def _usage(prompt: RenderedPrompt) -> Usage:
    num_cached = len(prompt.ids) - len(prompt.environment) if prompt.parent is not None else 0
    return Usage(prompt_tokens=len(prompt.ids), cached_tokens=num_cached)
