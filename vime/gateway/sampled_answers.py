"""Answers of a model that vLLM serves: rendered, sampled and read here, so that each of their tokens can be trained."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from vime.errors import ConfigError, Problem
from vime.gateway.chat import CONTEXT_FULL, ChatAnswer, ChatRequest, Refused, Usage
from vime.gateway.pending_call import PendingCall
from vime.gateway.reading import Reader, Reading
from vime.serving.client import BadRequestError
from vime.tasks import together
from vime.trajectory.aside import SHORT_PROMPT, aside, in_thread
from vime.trajectory.reply import RenderedPrompt
from vime.trajectory.template import chat_template
from vime.trajectory.tree import Trajectory
from vime.types import Integers, Message, Sample, Turn


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
class SampledAnswers:
    """Answers one agent's requests to one model, and keeps them in a tree."""

    model: Model
    reader: Reader
    fork: bool = True
    trajectory: Trajectory = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    """Sampled tokens."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Begins an empty trajectory."""
        self.trajectory = Trajectory(chat_template(self.model.tokenizer, self.model.template_args(None)), fork=self.fork)

    async def answers(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        """As many answers as the request asks for; their pieces are said while they arrive.

        Raises Refused if the chat template does not take the messages, or the context has no room for an answer. Raises
        ConfigError, which ends the run, if tools are offered that no reply could call.
        """
        if request.offered:
            self._check_parser()
        prompts = await self._prompts(request)
        call.usage = _usage(request, prompts[0])
        max_tokens = self._room(request, prompts[0])
        answers = [self._sample(request, prompt, call, place, max_tokens) for place, prompt in enumerate(prompts)]
        return await together(answers)

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a request has."""
        return len((await self._prompts(request, count=True))[0].ids)

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """Trainable sequences that contain every sampled token that a client received exactly once."""
        return self.trajectory.samples(template, **metadata)

    def statistics(self) -> Counter[str]:
        """Tokens of prompts and of replies that were delivered, sequences, and roots after the first by their cause."""
        tree, replies = self.trajectory.statistics, self.trajectory.replies
        found = Counter({f"fork_{cause}": count for cause, count in tree.forks.items()})
        found["prompt_tokens"], found["encoded_tokens"] = tree.num_prompt_tokens, tree.num_encoded_tokens
        found["delivered_tokens"] = sum(len(reply.turn.output_ids) for reply in replies if reply.delivered)
        found["sequences"] = sum(not reply.has_children for reply in replies)
        return found

    async def _prompts(self, request: ChatRequest, *, count: bool = False) -> list[RenderedPrompt]:
        """A prompt for each answer."""
        make = partial(self.trajectory.prompt, request.messages, request.tools, continues=request.continues, count=count)
        try:
            async with self._lock:  # a trajectory is changed by one thread at a time
                size = self.trajectory.num_new_characters(request.messages, request.tools) * request.num_answers
                return [make() if size <= SHORT_PROMPT else await in_thread(make) for _ in range(request.num_answers)]
        except TemplateError as error:
            raise Refused(f"the chat template of {self.model.name} refuses these messages: {error}") from error

    def _check_parser(self) -> None:
        parser, unread = self.reader.tool_parser, self.reader.unread
        if parser is not None and not unread:
            return
        reason = (
            f"the parser {parser} does not read the calls that the model is shown: {unread}" if parser else "there is no parser"
        )
        remedy = f"the agent offers tools, but {reason}; choose the parser with which vllm serve reads this model's tool calls"
        raise ConfigError([Problem(key=parser_key(self.model.name), value=parser, remedy=remedy)])

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

    def _reading(self, request: ChatRequest, prompt: RenderedPrompt) -> Reading:
        try:
            return self.reader.begin(request, prompt.ids)
        except ValueError as error:
            raise Refused(f"vLLM refuses the tools or the form of the answer: {error}") from error

    async def _sample(
        self, request: ChatRequest, prompt: RenderedPrompt, call: PendingCall, place: int, max_tokens: int
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
            turn = await self.model.complete(
                prompt.ids,
                max_tokens=max_tokens,
                stop=request.stop,
                constraint=reading.constraint,
                hear=hear if is_heard else None,
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
        num_reasoning = reading.num_reasoning_tokens(turn.output_ids)
        usage = replace(_usage(request, prompt), completion_tokens=len(turn.output_ids), reasoning_tokens=num_reasoning)
        return ChatAnswer(message=message, finish_reason=finish_reason, stop_text=reading.stop_text, turn=turn, usage=usage)

    async def _record(self, prompt: RenderedPrompt, turn: Turn, message: Message, call: PendingCall) -> None:
        async with self._lock:
            ended = bool(turn.output_ids) and turn.output_ids[-1] in self.reader.special_ids
            reply = self.trajectory.record(prompt, turn, message, ended=ended)
            reply.delivered = call.is_delivered
            call.replies.append(reply)


def parser_key(name: str) -> str:
    """The setting that names a model's parser of tool calls."""
    return "model.tool_parser" if name == "actor" else f"serving.models.{name}.tool_parser"


def _usage(request: ChatRequest, prompt: RenderedPrompt) -> Usage:
    num_cached = len(prompt.ids) - len(prompt.environment) if prompt.parent is not None else 0
    prompt_ids = prompt.ids if request.wants_token_ids else None
    return Usage(prompt_tokens=len(prompt.ids), cached_tokens=num_cached, prompt_ids=prompt_ids)
