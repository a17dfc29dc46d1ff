"""Answers of a model behind a chat API, which shows no tokens: an agent's baseline in an evaluation."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from vime.errors import SampleError
from vime.gateway.chat import ChatAnswer, ChatRequest, Refused, Usage, deltas_of
from vime.gateway.pending_call import PendingCall
from vime.serving.client import BadRequestError
from vime.tasks import together
from vime.trajectory.messages import ASSISTANT, TOOL, calls_of
from vime.types import Message, Sample, Turn


class ChatModel(Protocol):
    """What a session needs of such a model (`vime.rollout.endpoint_model.EndpointModel`)."""

    name: str
    max_model_len: int

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        tools: list[dict[str, Any]] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Turn: ...

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]: ...


DEFAULT_MAX_TOKENS = 4096
"""Longest answer of a request that names no limit."""


@dataclass(kw_only=True, slots=True)
class EndpointAnswers:
    """Passes one agent's requests on to one endpoint, and keeps the answers."""

    model: ChatModel
    counts: Counter[str] = field(default_factory=Counter)
    """Tokens of the answers, as the endpoint counts them."""
    turns: list[Turn] = field(default_factory=list)

    async def answers(self, request: ChatRequest, call: PendingCall) -> list[ChatAnswer]:
        """As many answers as the request asks for, each said at once. Raises Refused for logprobs."""
        if request.wants_logprobs:
            raise Refused(f"logprobs: {self.model.name} is an endpoint with a chat API, whose tokens are not known; leave it out")
        answers = await together([self._answer(request) for _ in range(request.num_answers)])
        call.usage = Usage(prompt_tokens=answers[0].usage.prompt_tokens)
        for place, answer in enumerate(answers):
            for delta in deltas_of(answer.message):
                call.say(place, delta)
        return answers

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt has in the trained model's tokens."""
        return len(self.model.render(request.messages, tools=request.tools))

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """The last answer, without tokens. Raises SampleError if there is none."""
        if not self.turns:
            raise SampleError(f"no request to {self.model.name} was answered")
        sample = template.with_turn(self.turns[-1])
        sample.metadata = {**sample.metadata, **metadata}
        return [sample]

    def statistics(self) -> Counter[str]:
        """Nothing: there is no tree."""
        return Counter()

    async def _answer(self, request: ChatRequest) -> ChatAnswer:
        body: dict[str, Any] = {"tool_choice": request.tool_choice} if request.offered else {}
        body |= {"response_format": request.response_format} if request.response_format else {}
        body |= {"stop": list(request.stop)} if request.stop else {}
        max_tokens = request.max_tokens or min(DEFAULT_MAX_TOKENS, self.model.max_model_len)
        messages = [_sent(message) for message in request.messages]
        try:
            turn = await self.model.chat(messages, max_tokens=max_tokens, tools=request.offered or None, body=body)
        except BadRequestError as error:
            raise Refused(str(error)) from error
        self.turns.append(turn)
        message: Message = {"role": ASSISTANT, "content": turn.message.get("content") or ""}
        if calls := calls_of(turn.message):
            message["tool_calls"] = calls
        num_read, num_written = turn.usage or (0, 0)
        self.counts["tokens"] += num_written
        reason = "tool_calls" if calls else turn.finish_reason
        usage = Usage(prompt_tokens=num_read, completion_tokens=num_written)
        return ChatAnswer(message=message, finish_reason=reason, stop_text="", turn=turn, usage=usage)


def _sent(message: Message) -> Message:
    """A message as OpenAI's chat API takes it: arguments are text."""
    if message["role"] == TOOL or not calls_of(message):
        return message
    calls = calls_of(message)
    texts = [call["function"] | {"arguments": _text(call["function"]["arguments"])} for call in calls]
    return message | {"tool_calls": [call | {"function": text} for call, text in zip(calls, texts, strict=True)]}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
