"""`AgentSession`: one agent's access to one model, behind a URL of its own; keeps everything that was sampled through it.

async with context.session("actor") as session:
    await run_my_agent(base_url=session.openai_url, api_key=session.secret)
return session.samples(sample)
"""

import asyncio
import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from vime.errors import ContextFullError, SampleError
from vime.gateway.chat import CONTEXT_FULL, ChatAnswer, ChatRequest, Refused
from vime.gateway.constraints import freely, unmet
from vime.gateway.limits import Limits
from vime.gateway.pending_call import PendingCall
from vime.types import Sample, StopReason

SECRET_BYTES = 24
SESSION_OVER = "session_over"


class Answers(Protocol):
    """Answers requests to one model: `SampledAnswers` of one that vLLM serves, or `EndpointAnswers` of one behind a chat API."""

    model: Any
    counts: Counter[str]

    async def answers(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]: ...

    async def count(self, request: ChatRequest) -> int: ...

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]: ...

    def statistics(self) -> Counter[str]: ...


@dataclass(kw_only=True, slots=True)
class AgentSession:
    """One agent's access to one model."""

    answers: Answers
    url: str = ""
    limits: Limits = field(default_factory=Limits)
    constrains: bool = False
    """True if the model is held to what a client asks for: structured output, and calls that must be made. The logprobs are then
    not those of the trainer. Otherwise it samples freely, and the client gets what comes."""
    refuses: bool = False
    """True if such requests are refused."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    counts: Counter[str] = field(init=False)
    """Calls, sampled tokens, retries, refusals, and replies that could not be read as they were asked for."""
    over: str = ""
    """Why no further call is answered; empty while the session is open."""
    stop_reason: StopReason = StopReason.ANSWERED
    """The limit that ended the agent, if one did; a full context is one unless the agent went on with less."""
    failure: Exception | None = None
    """Why a call could not be answered, if it was neither the agent's fault nor its end: the attempt is then lost."""
    refusal: str = ""
    """The reason why the latest refused request was refused."""
    malformed: str = ""
    """The reason why a reply could not be read as asked, until another one could: if its agent fails then, that is its end."""
    asked_sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the agent asked for; the run's are used in their place."""
    notes: set[str] = field(default_factory=set)
    """What of its requests was left out."""
    _calls: dict[bytes, PendingCall] = field(default_factory=dict)
    """The latest call of each request."""
    _under_way: set[PendingCall] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Counts calls beside the tokens of their answers."""
        self.counts = self.answers.counts

    @property
    def model_name(self) -> str:
        """The name of its model."""
        return self.answers.model.name

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
        digest = hashlib.sha256(route.encode() + b"\0" + body).digest()
        held = self._calls.get(digest)
        if held is not None and (retried or held.is_broken):
            self.counts["retries"] += 1
            return held
        call = self._calls[digest] = self._begin(request)
        return call

    async def ask(self, request: ChatRequest) -> ChatAnswer:
        """The answer to a request of an agent in this process, which needs no HTTP: the same tree, the same limits.

        Raises Refused where an HTTP client gets an error; `code` is CONTEXT_FULL if the context has no room for an answer.
        """
        try:
            call = self._begin(request)
            call.is_complete = True  # it has no connection that could break
            call.deliver()
            return (await call.answers())[0]
        except Refused as refused:
            self.refuse(refused)
            raise

    def refuse(self, refused: Refused) -> None:
        """Notes that a request was refused, and why."""
        self.counts["refused"] += 1
        self.refusal = refused.message

    @property
    def why_refused(self) -> str:
        """How many requests were refused, and why the last one was; "" if none was."""
        number = self.counts["refused"]
        calls = "1 call was refused" if number == 1 else f"{number} calls were refused, the last one"
        return f"{calls} because: {self.refusal}" if number else ""

    def _begin(self, request: ChatRequest) -> PendingCall:
        self._check()
        if request.is_constrained and not self.constrains:
            self._note_constraint(request)
        self.counts["calls"] += 1
        self.asked_sampling |= request.sampling
        self.notes |= set(request.notes)
        call = PendingCall()
        self._under_way = {held for held in self._under_way if not held.is_over} | {call}
        call.start(self._answer(request, call))
        return call

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a request has."""
        self._check()
        return await self.answers.count(request)

    def statistics(self) -> Counter[str]:
        """Calls, tokens, retries and refusals, and what the tree counts, for the run's metrics."""
        return self.counts + self.answers.statistics()

    async def idle(self, seconds: float) -> None:
        """Waits until no call is under way, at most so long."""
        if works := [call.work for call in self._under_way if call.work is not None]:
            await asyncio.wait(works, timeout=seconds)

    def end(self, reason: str = "the session is over") -> None:
        """Refuses all further calls, and gives up those under way."""
        self.over = self.over or reason
        for call in self._under_way:
            call.cancel()

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """Trainable sequences that contain every sampled token that a client received exactly once.

        Raises SampleError if the agent never called its model: its base URL is wrong, or it broke before. Raises the error of a
        call that could not be answered, ServerError for one, whatever the agent made of it: the rollout is then tried again.
        Raises ContextFullError if nothing was sampled because the first prompt fills the context.
        """
        if self.failure is not None:
            raise self.failure
        if not self.counts["calls"]:
            if self.refusal:
                raise SampleError(f"nothing was sampled from {self.model_name}: {self.why_refused}")
            raise SampleError(
                f"the agent made no call to {self.model_name}: did it start, and does it use session.openai_url as its base URL?"
            )
        if self.asked_sampling:
            metadata = {"asked_sampling": self.asked_sampling, **metadata}
        samples = self.answers.samples(template, **metadata)
        if not samples and self.stop_reason is StopReason.TOKEN_LIMIT:
            raise ContextFullError(
                f"the first prompt of the agent leaves no room in the context of {self.model_name}", self.model_name
            )
        if samples and self.stop_reason is not StopReason.ANSWERED:
            samples[-1].stop_reason = self.stop_reason
        return samples

    def _check(self) -> None:
        reached = self.limits.reached(self.counts)
        if reached is not None and not self.over:
            self.over, self.stop_reason = reached
        if self.over:
            raise Refused(self.over, code=SESSION_OVER)

    async def _answer(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        sampled = request if self.constrains or not request.is_constrained else freely(request)
        try:
            answers = await self.answers.answers(sampled, call)
        except Refused as refused:
            if refused.code == CONTEXT_FULL:
                self.stop_reason = StopReason.TOKEN_LIMIT
            raise
        except Exception as error:  # whatever it is, no agent can be blamed for it
            self.failure = error
            raise
        if not self.over:
            self.stop_reason = StopReason.ANSWERED
        if sampled is not request:
            wrong = list(filter(None, (unmet(request, answer.message) for answer in answers)))
            self.counts["malformed"] += len(wrong)
            self.malformed = wrong[-1] if wrong else ""
        return answers

    def _note_constraint(self, request: ChatRequest) -> None:
        """Notes what the model is not held to. Raises Refused if it is refused."""
        what = "tool_choice" if request.is_forced else "response_format" if request.response_format else "structured_outputs"
        if self.refuses:
            raise Refused(
                f"{what}: this model is being trained, so it samples freely: constrained, it has other logprobs than the trainer "
                "computes. Use tool_choice auto or none, and no structured output, or gateway.constraints=free",
                code=f"unsupported_{what}",
            )
        self.notes.add(f"{what}: the trained model samples freely, and the client gets what comes (gateway.constraints=free)")
