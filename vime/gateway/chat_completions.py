"""OpenAI's Chat Completions: `POST /v1/chat/completions`."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from vime.gateway.chat import ChatAnswer, ChatRequest, Delta, Refused
from vime.gateway.dialect import Event, text_of, wanted
from vime.trajectory.messages import ASSISTANT, TOOL
from vime.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user", ASSISTANT: ASSISTANT, TOOL: TOOL}
"""Roles of this protocol, and those that chat templates know."""
MOST_ANSWERS = 128


class ChatCompletions:
    """The protocol, as the SDKs of OpenAI and most other clients speak it."""

    route = "/v1/chat/completions"

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ChatRequest:
        """Raises Refused for images, calls that must be made, and structured output."""
        messages = wanted(body, "messages", list, [])
        if not messages:
            raise Refused("messages must contain at least one message")
        num_answers = wanted(body, "n", int, 1)
        if not 1 <= num_answers <= MOST_ANSWERS:
            raise Refused(f"n must be between 1 and {MOST_ANSWERS}, not {num_answers}")
        stop = wanted(body, "stop", (str, list), [])
        return ChatRequest(
            messages=[_message(message, place) for place, message in enumerate(messages)],
            tools=_tools(wanted(body, "tools", list, [])),
            max_tokens=_max_tokens(body),
            stop=(stop,) if isinstance(stop, str) else tuple(str(word) for word in stop),
            num_answers=num_answers,
            stream=wanted(body, "stream", bool, False),
            tool_choice=_tool_choice(body),
            wants_logprobs=wanted(body, "logprobs", bool, False),
            options={
                "model": str(body.get("model") or ""),
                "usage": bool((wanted(body, "stream_options", dict) or {}).get("include_usage")),
                "created": int(time.time()),
                "id": f"chatcmpl-{uuid.uuid4().hex}",
            },
        )

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """A `chat.completion`."""
        choices = [
            {
                "index": place,
                "message": {**answer.message, "content": answer.message["content"] or None, "refusal": None},
                "finish_reason": answer.finish_reason,
                "logprobs": _logprobs(answer) if request.wants_logprobs else None,
            }
            for place, answer in enumerate(answers)
        ]
        return {**_head(request, "chat.completion"), "choices": choices, "usage": _usage(answers)}

    def stream(self, request: ChatRequest) -> "ChatStream":
        """Its `chat.completion.chunk`s."""
        return ChatStream(request)

    def error(self, refused: Refused) -> dict[str, Any]:
        """As OpenAI's API words it."""
        return {"error": {"message": refused.message, "type": "invalid_request_error", "param": None, "code": refused.code}}


class ChatStream:
    """The chunks of one request."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request

    def begin(self) -> Iterator[Event]:
        """The role of each choice."""
        for place in range(self._request.num_answers):
            yield self._chunk(place, {"role": ASSISTANT, "content": ""})

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """One chunk."""
        found: dict[str, Any] = {}
        if delta.reasoning:
            found["reasoning_content"] = delta.reasoning
        if delta.content:
            found["content"] = delta.content
        if delta.call is not None:
            call: dict[str, Any] = {"index": delta.call, "function": {"arguments": delta.arguments}}
            if delta.name:
                call |= {"id": delta.call_id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}
            found["tool_calls"] = [call]
        yield self._chunk(place, found)

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """Why each choice ended, then the usage if it was asked for."""
        for place, answer in enumerate(answers):
            logprobs = _logprobs(answer) if self._request.wants_logprobs else None
            yield self._chunk(place, {}, finish_reason=answer.finish_reason, logprobs=logprobs)
        if self._request.options["usage"]:
            yield "", {**_head(self._request, "chat.completion.chunk"), "choices": [], "usage": _usage(answers)}
        yield "", "[DONE]"

    def _chunk(self, place: int, delta: dict[str, Any], **more: Any) -> Event:
        choice = {"index": place, "delta": delta, "finish_reason": None, **more}
        return "", {**_head(self._request, "chat.completion.chunk"), "choices": [choice]}


def _head(request: ChatRequest, kind: str) -> dict[str, Any]:
    options = request.options
    return {"id": options["id"], "object": kind, "created": options["created"], "model": options["model"]}


def _message(message: Any, place: int) -> Message:
    """A message as chat templates take it. Raises Refused for what they cannot say."""
    where = f"messages[{place}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else None
        raise Refused(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r}")
    found: Message = {"role": ROLES[message["role"]], "content": text_of(message.get("content"), where=f"{where}.content")}
    if found["role"] == TOOL:
        found["tool_call_id"] = wanted(message, "tool_call_id", str, "")
    if found["role"] == ASSISTANT:
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            found["reasoning_content"] = text_of(reasoning, where=f"{where}.reasoning_content")
        if calls := wanted(message, "tool_calls", list, []):
            found["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return found


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} must have a function with a name")
    arguments = function.get("arguments")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": "" if arguments is None else arguments},
    }


def _tools(tools: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(f"tools[{place}] must be a function with a name")
        known = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
        found.append({"type": "function", "function": known})
    return found


def _tool_choice(body: dict[str, Any]) -> str:
    choice, form = body.get("tool_choice"), body.get("response_format")
    if choice not in (None, "auto", "none"):
        raise Refused(
            "tool_choice: only auto and none are supported, because a model that is constrained in what it samples has other "
            "logprobs than the trainer computes",
            code="unsupported_tool_choice",
        )
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        raise Refused(
            "response_format: only text is supported, because a model that is constrained in what it samples has other logprobs "
            "than the trainer computes",
            code="unsupported_response_format",
        )
    return choice or "auto"


def _max_tokens(body: dict[str, Any]) -> int | None:
    found = wanted(body, "max_completion_tokens", int) or wanted(body, "max_tokens", int)
    if found is not None and found < 1:
        raise Refused(f"max_tokens must be at least 1, not {found}")
    return found


def _logprobs(answer: ChatAnswer) -> dict[str, Any]:
    """The logprobs of the sampled tokens; their texts are ids, because a token need not be a text."""
    turn = answer.turn
    pairs = zip(turn.output_ids, turn.logprobs, strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []} for token, logprob in pairs
        ],
        "refusal": None,
    }


def _usage(answers: list[ChatAnswer]) -> dict[str, Any]:
    prompt, completion = answers[0].usage.prompt_tokens, sum(answer.usage.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answers[0].usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.usage.reasoning_tokens for answer in answers)},
    }
