"""`AgentSession`: one agent's access to one model, behind a URL of its own; keeps everything that was sampled through it.

async with context.session("actor") as session:
    await run_my_agent(base_url=session.openai_url, api_key=session.secret)
return session.samples(sample)
"""

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
from jinja2.exceptions import TemplateError

from vime.chat.reply_reader import Reading, ReplyReader, check_parser
from vime.chat.request import CONTEXT_FULL, ChatAnswer, ChatRequest, Refused, Usage, deltas_of
from vime.chat.served_model import ServedModel
from vime.errors import BadRequestError, ContextFullError, SampleError
from vime.gateway.constraints import freely, unmet
from vime.gateway.pending_call import PendingCall
from vime.tasks import together
from vime.trajectory.aside import SHORT_PROMPT, aside, in_thread
from vime.trajectory.dialogue import Dialogue
from vime.trajectory.messages import ASSISTANT, TOOL, calls_of
from vime.trajectory.template import chat_template
from vime.trajectory.trajectory import Call, CallPrompt
from vime.types import Message, Sample, StopReason, Turn

DEFAULT_MAX_TOKENS = 4096
"""Longest answer of an endpoint to a request that names no limit."""
SECRET_BYTES = 24
SESSION_OVER = "session_over"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on one session's requests; None for no limit. Example: `Limits(num_calls=20)`."""

    num_calls: int | None = None
    num_tokens: int | None = None
    """Sampled tokens, of all calls together."""

    def reached(self, counts: Mapping[str, int]) -> tuple[str, StopReason] | None:
        """The limit that is reached, in words and as a reason; None if none is."""
        if self.num_calls is not None and counts["calls"] >= self.num_calls:
            return f"the session's limit of {self.num_calls} calls is reached", StopReason.TURN_LIMIT
        if self.num_tokens is not None and counts["tokens"] >= self.num_tokens:
            return f"the session's limit of {self.num_tokens} sampled tokens is reached", StopReason.TOKEN_LIMIT
        return None


@dataclass(kw_only=True, slots=True)
class AgentSession:
    """One agent's access to one model."""

    model: ServedModel
    reader: ReplyReader | None = None
    """Reads the replies of a model whose tokens are known."""
    fork: bool = True
    """If false, sampled tokens are kept as they are where the chat template renders earlier messages differently."""
    dialogue: Dialogue = field(init=False)
    """The conversations of the agent; there are none with a model whose tokens are not known."""
    url: str = ""
    limits: Limits = field(default_factory=Limits)
    constrains: bool = False
    """True if a client's constraints are enforced: structured output, and calls that must be made. The logprobs are then not
    those of the trainer. Otherwise the model samples freely, and the client gets the reply as it is."""
    refuses: bool = False
    """True if such requests are refused."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    counts: Counter[str] = field(default_factory=Counter)
    """Calls, sampled tokens, retries, refusals, and replies without the requested form."""
    over: str = ""
    """The reason why no further call is answered; empty while the session is open."""
    stop_reason: StopReason = StopReason.ANSWERED
    """The limit that ended the agent, if one did; a full context is one unless the agent went on with less."""
    failure: Exception | None = None
    """The reason why a call could not be answered, if it was neither the agent's fault nor its end: the attempt is then lost."""
    refusal: str = ""
    """The reason why the latest refused request was refused."""
    malformed: str = ""
    """The reason why a reply could not be read as asked, until another one could: if its agent fails then, that is its end."""
    asked_sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the agent asked for; the run's are used in their place."""
    notes: set[str] = field(default_factory=set)
    """Parts of its requests that were left out."""
    _calls: dict[bytes, PendingCall] = field(default_factory=dict)
    """The latest call of each request."""
    _under_way: set[PendingCall] = field(default_factory=set)
    _unseen: list[Call] = field(default_factory=list)
    """Calls of a model whose tokens are not known."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Begins without conversations."""
        if self.model.shows_tokens:
            self.dialogue = Dialogue(chat_template(self.model.tokenizer, self.model.template_args(None)), fork=self.fork)

    @property
    def model_name(self) -> str:
        """The name of its model."""
        return self.model.name

    @property
    def openai_url(self) -> str:
        """`OPENAI_BASE_URL` of clients that speak Chat Completions or Responses."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """`ANTHROPIC_BASE_URL` of clients that speak Messages."""
        return self.url

    def call(self, route: str, body: bytes, request: ChatRequest, *, retried: bool) -> PendingCall:
        """The call of a request: a new one, or the earlier call of the same request if this is a client's retry.

        A request is a retry if the client says so (`retried`), or if the same one was sent before and its connection was lost.
        Every other request is new, even if it equals an earlier one.
        """
        digest = hashlib.sha256(b"\0".join((route.encode(), request.caller.encode(), body))).digest()
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
        """The number of refused requests, and the reason of the last refusal; "" if none was refused."""
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
        """Number of tokens in the prompt of a request, in the trained model's tokens if its own are not known."""
        self._check()
        if not self.model.shows_tokens:
            return len(self.model.render(request.messages, tools=request.tools))
        return len((await self._prompts(request, count=True))[0].ids)

    def statistics(self) -> Counter[str]:
        """Calls, tokens, retries and refusals, and for the run's metrics the tokens of prompts and of replies that were
        delivered, sequences, and roots after the first by their cause."""
        if not self.model.shows_tokens:
            return self.counts + Counter()
        of_prompts, calls = self.dialogue.statistics, self.dialogue.calls
        found = Counter({f"fork_{cause}": count for cause, count in of_prompts.forks.items()})
        found["prompt_tokens"], found["encoded_tokens"] = of_prompts.num_prompt_tokens, of_prompts.num_encoded_tokens
        found["delivered_tokens"] = sum(len(call.turn.output_ids) for call in calls if call.delivered)
        found["sequences"] = sum(not call.has_children for call in calls)
        return self.counts + found

    async def idle(self, seconds: float) -> None:
        """Waits until no call is under way, at most `seconds`."""
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
        call that could not be answered, such as ServerError, even if the agent handled it: the rollout is then tried again.
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
        calls = self.dialogue.calls if self.model.shows_tokens else self._unseen[-1:]
        samples = self.model.trajectory.samples(template, metadata, calls=calls)
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
            answers = await (self._sampled(sampled, call) if self.model.shows_tokens else self._passed_on(sampled, call))
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
        """Notes the constraints that are not enforced. Raises Refused if it is refused."""
        what = "tool_choice" if request.is_forced else "response_format" if request.response_format else "structured_outputs"
        if self.refuses:
            raise Refused(
                f"{what}: this model is being trained, so it samples freely: constrained, it has other logprobs than the trainer "
                "computes. Use tool_choice auto or none, and no structured output, or gateway.constraints=free",
                code=f"unsupported_{what}",
            )
        self.notes.add(f"{what}: the trained model samples freely, and the client gets what comes (gateway.constraints=free)")

    async def _sampled(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        """Samples the number of answers that the request asks for; their pieces are sent while they arrive.

        Raises Refused if the chat template does not take the messages, or the context has no room for an answer. Raises
        ConfigError, which ends the run, if tools are offered that no reply could call.
        """
        if request.offered:
            check_parser(self.reader, self.model.name)
        prompts = await self._prompts(request)
        call.usage = _usage(request, prompts[0])
        max_tokens = self._room(request, prompts[0])
        answers = [self._sample(request, prompt, call, place, max_tokens) for place, prompt in enumerate(prompts)]
        return await together(answers)

    async def _prompts(self, request: ChatRequest, *, count: bool = False) -> list[CallPrompt]:
        """A prompt for each answer."""
        about = {"caller": request.caller, "continues": request.continues, "count": count}
        make = partial(self.dialogue.prompt, request.messages, request.tools, **about)
        try:
            async with self._lock:  # a dialogue is changed by one thread at a time
                size = self.dialogue.num_new_characters(request.messages, request.tools) * request.num_answers
                return [make() if size <= SHORT_PROMPT else await in_thread(make) for _ in range(request.num_answers)]
        except TemplateError as error:
            raise Refused(f"the chat template of {self.model.name} refuses these messages: {error}") from error

    @property
    def _reader(self) -> ReplyReader:
        assert self.reader is not None, f"{self.model.name} has no reader of its replies"
        return self.reader

    def _room(self, request: ChatRequest, prompt: CallPrompt) -> int:
        """Number of tokens that may be sampled. Raises Refused if the context is full."""
        room, wanted = self.model.max_model_len - len(prompt.ids), request.max_tokens
        if room < 1:
            raise Refused(
                f"prompt is too long: {len(prompt.ids)} tokens > {self.model.max_model_len} maximum "
                f"(the context length of {self.model.name})",
                code=CONTEXT_FULL,
            )
        return min(room, wanted) if wanted else room

    def _reading(self, request: ChatRequest, prompt: CallPrompt) -> Reading:
        try:
            return self._reader.begin(request, prompt.ids)
        except ValueError as error:
            raise Refused(f"vLLM refuses the tools or the form of the answer: {error}") from error

    async def _sample(
        self, request: ChatRequest, prompt: CallPrompt, call: PendingCall, place: int, max_tokens: int
    ) -> ChatAnswer:
        reading = self._reading(request, prompt)
        say, num_heard = partial(call.say, place), 0

        def hear(piece: Turn) -> None:
            nonlocal num_heard
            num_heard += len(piece.output_ids)
            for delta in reading.feed(piece.output_ids):
                say(delta)

        is_heard = request.stream and not request.stop  # a stop text is cut off at the end, so nothing is said before
        try:
            sent = await self.model.call(
                prompt,
                max_tokens=max_tokens,
                stop=request.stop,
                constraint=reading.constraint,
                hear=hear if is_heard else None,
            )
        except BadRequestError as error:
            raise Refused(str(error)) from error
        turn = sent.turn
        self.counts["tokens"] += len(turn.output_ids)
        stopped = turn.finish_reason == "stop"
        if is_heard:
            last = reading.finish(turn.output_ids[num_heard:], stopped=stopped)
        else:
            last = await aside(len(turn.output_ids), partial(reading.whole, stopped=stopped), turn.output_ids)
        message = reading.message
        await self._record(prompt, sent, message, call)
        for delta in last:
            say(delta)
        finish_reason = "tool_calls" if message.get("tool_calls") and stopped else turn.finish_reason
        num_reasoning = reading.num_reasoning_tokens(turn.output_ids)
        usage = replace(_usage(request, prompt), completion_tokens=len(turn.output_ids), reasoning_tokens=num_reasoning)
        return ChatAnswer(message=message, finish_reason=finish_reason, stop_text=reading.stop_text, turn=turn, usage=usage)

    async def _record(self, prompt: CallPrompt, sent: Call, message: Message, call: PendingCall) -> None:
        async with self._lock:
            ids = sent.turn.output_ids
            self.dialogue.answered(sent, prompt, message, ended=bool(ids) and ids[-1] in self._reader.special_ids)
            sent.delivered = call.is_delivered
            call.replies.append(sent)

    async def _passed_on(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        """Gets the number of answers that the request asks for and sends each one whole. Raises Refused for logprobs."""
        if request.wants_logprobs:
            raise Refused(f"logprobs: {self.model.name} is an endpoint with a chat API, whose tokens are not known; leave it out")
        answers = await together([self._answer_of_endpoint(request) for _ in range(request.num_answers)])
        call.usage = Usage(prompt_tokens=answers[0].usage.prompt_tokens)
        for place, answer in enumerate(answers):
            for delta in deltas_of(answer.message):
                call.say(place, delta)
        return answers

    async def _answer_of_endpoint(self, request: ChatRequest) -> ChatAnswer:
        body: dict[str, Any] = {"tool_choice": request.tool_choice} if request.offered else {}
        body |= {"response_format": request.response_format} if request.response_format else {}
        body |= {"stop": list(request.stop)} if request.stop else {}
        max_tokens = request.max_tokens or min(DEFAULT_MAX_TOKENS, self.model.max_model_len)
        messages = [_sent(message) for message in request.messages]
        try:
            call = await self.model.ask(messages, max_tokens=max_tokens, tools=request.offered or None, body=body)
        except BadRequestError as error:
            raise Refused(str(error)) from error
        self._unseen.append(call)
        turn = call.turn
        message: Message = {"role": ASSISTANT, "content": turn.message.get("content") or ""}
        if calls := calls_of(turn.message):
            message["tool_calls"] = calls
        num_read, num_written = turn.usage or (0, 0)
        self.counts["tokens"] += num_written
        reason = "tool_calls" if calls else turn.finish_reason
        usage = Usage(prompt_tokens=num_read, completion_tokens=num_written)
        return ChatAnswer(message=message, finish_reason=reason, stop_text="", turn=turn, usage=usage)


def _usage(request: ChatRequest, prompt: CallPrompt) -> Usage:
    num_cached = len(prompt.ids) - len(prompt.environment) if prompt.parent is not None else 0
    prompt_ids = prompt.ids if request.wants_token_ids else None
    return Usage(prompt_tokens=len(prompt.ids), cached_tokens=num_cached, prompt_ids=prompt_ids)


def _sent(message: Message) -> Message:
    """A message as OpenAI's chat API takes it: arguments are text."""
    if message["role"] == TOOL or not calls_of(message):
        return message
    calls = calls_of(message)
    texts = [call["function"] | {"arguments": _text(call["function"]["arguments"])} for call in calls]
    return message | {"tool_calls": [call | {"function": text} for call, text in zip(calls, texts, strict=True)]}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
