"""Anthropic's Messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar

from vime.chat.request import ChatAnswer, ChatRequest, Delta, Refused, Usage
from vime.gateway.body import (
    count_of,
    entry,
    function_tool,
    named_choice,
    role_of,
    sampling_of,
    text_of,
    tool_call,
    tool_result,
    wanted,
)
from vime.gateway.client_tools import anthropic_function
from vime.gateway.dialect import Event, new_id
from vime.gateway.fields import MESSAGES
from vime.gateway.parts import CALL, REASONING, Part, Parts, Step
from vime.trajectory.messages import ASSISTANT, parsed
from vime.types import Message

ROLES = ("system", "user", ASSISTANT)
BILLING = "x-anthropic-billing-header:"
"""The beginning of a system block of Claude Code whose content changes with each request."""
NOT_SHOWN = ("redacted_thinking", "server_tool_use")
"""Blocks of a reply that no model served here has written."""
SIGNATURE_BYTES = 48
CHOICES = {"auto": "auto", "none": "none", "any": "required"}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERRORS = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


class AnthropicMessages:
    """The protocol, as the SDKs of Anthropic and Claude Code speak it."""

    route: ClassVar[str] = "/v1/messages"
    count_route: ClassVar[str] = "/v1/messages/count_tokens"

    def parse(self, body: dict[str, Any]) -> ChatRequest:
        """Raises Refused for images and documents; tools that Anthropic's servers would run are left out."""
        if body.get("thread") is not None:  # the SDKs' tool runners then send the whole conversation
            details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            raise Refused("thread: no conversation is kept; send all messages with every request", details=details)
        messages = [{"role": "system", "content": system}] if (system := _system(body.get("system"))) else []
        given = wanted(body, "messages", list, [])
        if not given:
            raise Refused("messages must contain at least one message")
        for place, message in enumerate(given):
            messages += _messages(message, f"messages[{place}]")
        notes = MESSAGES.notes(body)
        tools, left_out = _tools(wanted(body, "tools", list, []))
        choice = wanted(body, "tool_choice", dict, {})
        stop = wanted(body, "stop_sequences", list, [])
        return ChatRequest(
            messages=messages,
            tools=tools,
            max_tokens=count_of(body, "max_tokens"),
            stop=tuple(str(word) for word in stop),
            stream=wanted(body, "stream", bool, False),
            continues=True,
            object_arguments=True,
            tool_choice=_tool_choice(choice, tools),
            parallel_calls=not wanted(choice, "disable_parallel_tool_use", bool, False),
            response_format=_response_format(body),
            sampling=sampling_of(body),
            notes=notes + left_out,
            options={"model": str(body.get("model") or ""), "id": new_id("msg")},
        )

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """A `message`."""
        (answer,) = answers
        content = [_block(part, whole=True) for part in Parts.of(answer.message)]
        return {**_head(request), "content": content, **_reason(answer), "usage": _usage(answer.usage)}

    def stream(self, request: ChatRequest) -> "MessageStream":
        """The answer as a stream of events."""
        return MessageStream(request, self)

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The tokens of the prompt."""
        return {"input_tokens": num_tokens}

    def error(self, refused: Refused) -> dict[str, Any]:
        """The error as Anthropic's API words it."""
        kind = ERRORS.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
        details = {} if refused.details is None else {"details": refused.details}
        return {"type": "error", "error": {"type": kind, "message": refused.message, **details}}


class MessageStream:
    """The events of one message: its blocks, one after the other."""

    def __init__(self, request: ChatRequest, dialect: AnthropicMessages) -> None:
        self._request, self._dialect = request, dialect
        self._parts = Parts()

    def begin(self, usage: Usage) -> Iterator[Event]:
        """The message without its content."""
        empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        yield _event("message_start", message={**_head(self._request), **empty})

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """The additions to a block, and the beginnings and ends of blocks."""
        for step in self._parts.add(delta):
            yield from self._step(step)

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """The reason why the message ended, and its cost."""
        for step in self._parts.end():
            yield from self._step(step)
        yield _event("message_delta", delta=_reason(answers[0]), usage=_usage(answers[0].usage))
        yield _event("message_stop")

    def error(self, refused: Refused) -> Iterator[Event]:
        """An error, which clients raise."""
        yield "error", self._dialect.error(refused)

    def _step(self, step: Step) -> Iterator[Event]:
        what, part, text = step
        index = len(self._parts.parts) - 1
        if what == "begin":
            yield _event("content_block_start", index=index, content_block=_block(part, whole=False))
        elif what == "more":
            kind, key = DELTAS[part.kind]
            yield _event("content_block_delta", index=index, delta={"type": kind, key: text})
        else:
            if part.kind == REASONING:
                delta = {"type": "signature_delta", "signature": _signature(part.text)}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)


DELTAS = {REASONING: ("thinking_delta", "thinking"), CALL: ("input_json_delta", "partial_json"), "text": ("text_delta", "text")}
"""The form in which pieces of a block are sent: their type, and the field that holds them."""


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


def _head(request: ChatRequest) -> dict[str, Any]:
    return {"id": request.options["id"], "type": "message", "role": ASSISTANT, "model": request.options["model"]}


def _block(part: Part, *, whole: bool) -> dict[str, Any]:
    """A block of content, which in a stream begins empty."""
    if part.kind == REASONING:
        text = part.text if whole else ""
        return {"type": "thinking", "thinking": text, "signature": _signature(text) if whole else ""}
    if part.kind == CALL:
        arguments = parsed(part.text) if whole else {}
        return {
            "type": "tool_use",
            "id": part.call_id,
            "name": part.name,
            "input": arguments if isinstance(arguments, dict) else {},
        }
    return {"type": "text", "text": part.text if whole else ""}


def _signature(thinking: str) -> str:
    """A signature by which clients take thinking for the session model's; other thinking they send as text of the user."""
    return base64.b64encode(hashlib.blake2b(thinking.encode(), digest_size=SIGNATURE_BYTES).digest()).decode()


def _reason(answer: ChatAnswer) -> dict[str, Any]:
    if answer.stop_text and answer.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_text}
    return {"stop_reason": STOP_REASONS.get(answer.finish_reason, "end_turn"), "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens that an earlier answer already had are counted apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _system(system: Any) -> str:
    blocks = system if isinstance(system, list) else [system]
    texts = [text_of(block if isinstance(block, str) else [block] if block else None, where="system") for block in blocks]
    return "\n".join(text for text in texts if text and not text.startswith(BILLING))


def _tools(given: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Functions for the model, and a note on each tool that cannot be offered to it."""
    tools: list[dict[str, Any]] = []
    notes: list[str] = []
    for place, tool in enumerate(given):
        kind = entry(tool, f"tools[{place}]").get("type") or "custom"
        function = tool if kind == "custom" else anthropic_function(tool)
        if function is not None:
            tools.append(function_tool(function, f"tools[{place}]", schema="input_schema"))
        else:
            notes.append(f"the tool {kind} is not offered to the model: Anthropic's servers would run it, or it needs pictures")
    return tools, notes


def _tool_choice(choice: dict[str, Any], tools: list[dict[str, Any]]) -> str | dict[str, Any]:
    kind = choice.get("type", "auto")
    if kind == "tool":
        return named_choice(choice.get("name"), tools)
    if isinstance(kind, str) and kind in CHOICES:
        return CHOICES[kind]
    raise Refused(f"tool_choice.type must be auto, any, tool or none, not {kind!r}")


def _response_format(body: dict[str, Any]) -> dict[str, Any] | None:
    form = wanted(wanted(body, "output_config", dict, {}), "format", dict) or wanted(body, "output_format", dict)
    if form is None:
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise Refused("output_config.format must be a json_schema with a schema", code="unsupported_response_format")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"]}}


def _messages(message: Any, where: str) -> list[Message]:
    """A message as chat templates take it: results of tools are messages of their own, ahead of the text beside them."""
    role = role_of(message, ROLES, where)
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise Refused(f"{where}.content must be a string or a list of blocks, not {type(content).__name__}")
    if role == ASSISTANT:
        return [_reply(content, f"{where}.content")]
    if not isinstance(content, list):
        return [{"role": role, "content": content or ""}]
    results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
    others = [block for block in content if block not in results]
    found = [
        tool_result(block.get("content"), call_id=block.get("tool_use_id"), where=f"{where}.content of a tool_result")
        for block in results
    ]
    if others or not results:
        found.append({"role": role, "content": text_of(others, where=f"{where}.content")})
    return found


def _reply(content: str | list[Any] | None, where: str) -> Message:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    reasoning, texts = "", []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        kind = entry(block, f"{where}[{place}]").get("type")
        if kind == "thinking":
            reasoning += wanted(block, "thinking", str, "")
        elif kind == "tool_use":
            calls.append(
                tool_call(block.get("name"), block.get("input") or {}, call_id=block.get("id"), where=f"{where}[{place}]")
            )
        elif kind not in NOT_SHOWN:
            texts.append(block)
    found: Message = {"role": ASSISTANT, "content": text_of(texts, where=where, separator="")}
    return found | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})
