"""OpenAI's Chat Completions: `POST /v1/chat/completions`."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from vime.chat.request import ChatAnswer, ChatRequest, Delta, Refused, Usage
from vime.gateway.body import (
    allowed_tools,
    count_of,
    entry,
    function_tool,
    role_of,
    sampling_of,
    text_of,
    tool_call,
    tool_choice,
    tool_result,
    wanted,
)
from vime.gateway.dialect import Event
from vime.gateway.fields import CHAT
from vime.trajectory.messages import ASSISTANT, TOOL
from vime.types import Message

FUNCTION = "function"
ROLES = {"system": "system", "developer": "system", "user": "user", ASSISTANT: ASSISTANT, TOOL: TOOL, FUNCTION: TOOL}
"""Roles of this protocol, and those that chat templates know."""
MOST_ANSWERS = 128
FORMS = {"json": (dict, str, bool), "json_object": bool, "regex": str, "choice": list, "grammar": str, "structural_tag": str}
"""The forms of `structured_outputs` with the types of their values."""
GUIDED = ("json", "regex", "choice", "grammar")


class ChatCompletions:
    """The protocol, as the SDKs of OpenAI and most other clients speak it."""

    route: ClassVar[str] = "/v1/chat/completions"
    count_route: ClassVar[str] = ""

    def __init__(self) -> None:
        self._functions = FunctionCalls()

    def parse(self, body: dict[str, Any]) -> ChatRequest:
        """Raises Refused for images and for logprobs of tokens that were not sampled."""
        notes = CHAT.notes(body)
        messages = wanted(body, "messages", list, [])
        if not messages:
            raise Refused("messages must contain at least one message")
        num_answers = wanted(body, "n", int, 1)
        if not 1 <= num_answers <= MOST_ANSWERS:
            raise Refused(f"n must be between 1 and {MOST_ANSWERS}, not {num_answers}")
        if wanted(body, "top_logprobs", int, 0):
            raise Refused("top_logprobs: only the logprobs of sampled tokens are known; leave it out")
        stop = wanted(body, "stop", (str, list), [])
        functions = wanted(body, "functions", list, [])
        tools = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(wanted(body, "tools", list, []))]
        tools += [function_tool(function, f"functions[{place}]") for place, function in enumerate(functions)]
        choice, tools = allowed_tools(_choice(body), tools)
        return ChatRequest(
            messages=[_message(message, f"messages[{place}]") for place, message in enumerate(self._functions.named(messages))],
            tools=tools,
            max_tokens=count_of(body, "max_completion_tokens", "max_tokens"),
            stop=(stop,) if isinstance(stop, str) else tuple(str(word) for word in stop),
            num_answers=num_answers,
            stream=wanted(body, "stream", bool, False),
            continues=wanted(body, "continue_final_message", bool, False),
            tool_choice=tool_choice(choice, tools),
            parallel_calls=wanted(body, "parallel_tool_calls", bool, True) and not functions,
            response_format=response_format(wanted(body, "response_format", dict), where="response_format"),
            structured_outputs=_structured_outputs(body),
            wants_logprobs=wanted(body, "logprobs", bool, False),
            wants_token_ids=wanted(body, "return_token_ids", bool, False),
            sampling=sampling_of(body),
            notes=notes,
            options={
                "functions": self._functions if functions else None,
                "model": str(body.get("model") or ""),
                "usage": bool(wanted(body, "stream_options", dict, {}).get("include_usage")),
                "created": int(time.time()),
                "id": f"chatcmpl-{uuid.uuid4().hex}",
            },
        )

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """A `chat.completion`."""
        choices = [
            {
                "index": place,
                "message": {**_shown(request, answer.message), "content": answer.message["content"] or None, "refusal": None},
                "finish_reason": _finish_reason(request, answer),
                "logprobs": _logprobs(answer) if request.wants_logprobs else None,
                **(_token_ids(answer) if request.wants_token_ids else {}),
            }
            for place, answer in enumerate(answers)
        ]
        prompt = _prompt_ids(answers[0].usage) if request.wants_token_ids else {}
        return {**_head(request, "chat.completion"), **prompt, "choices": choices, "usage": _usage(answers)}

    def stream(self, request: ChatRequest) -> "ChatStream":
        """The answer as a stream of `chat.completion.chunk`s."""
        return ChatStream(request, self)

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The number of input tokens; this protocol has no request for it."""
        return {"input_tokens": num_tokens}

    def error(self, refused: Refused) -> dict[str, Any]:
        """The error as OpenAI's API words it."""
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        return {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.code}}


class FunctionCalls:
    """Calls in the form that Chat Completions had before it had tools: one in a reply, and without an id.

    Here they have ids, by which a conversation that comes back is recognized.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], list[str]] = {}
        """The ids of all calls of a function with these arguments, in their order."""

    def said(self, call: dict[str, Any]) -> dict[str, Any]:
        """A call of a reply as its client gets it."""
        function = call["function"]
        held = self._ids.setdefault((function["name"], function["arguments"]), [])
        if call["id"] not in held:
            held.append(call["id"])
        return function

    def named(self, messages: list[Any]) -> list[Any]:
        """Messages in which calls and their results have ids."""
        found: list[Any] = []
        seen: Counter[tuple[str, str]] = Counter()
        latest = ""
        for place, message in enumerate(messages):
            if isinstance(message, dict) and isinstance(call := message.get("function_call"), dict):
                key = (str(call.get("name")), str(call.get("arguments") or ""))
                held = self._ids.get(key) or [f"call_{place}"]
                latest = held[min(seen[key], len(held) - 1)]
                seen[key] += 1
                calls = [{"id": latest, "type": "function", "function": call}]
                found.append({key: value for key, value in message.items() if key != "function_call"} | {"tool_calls": calls})
            elif isinstance(message, dict) and message.get("role") == FUNCTION:
                found.append({**message, "tool_call_id": latest})
            else:
                found.append(message)
        return found


class ChatStream:
    """The chunks of one request."""

    def __init__(self, request: ChatRequest, dialect: ChatCompletions) -> None:
        self._request, self._dialect = request, dialect

    def begin(self, usage: Usage) -> Iterator[Event]:
        """The role of each choice; the first also has the token ids of the prompt, if they were asked for."""
        prompt = _prompt_ids(usage) if self._request.wants_token_ids else {}
        for place in range(self._request.num_answers):
            name, chunk = self._chunk(place, {"role": ASSISTANT, "content": ""})
            assert isinstance(chunk, dict)
            yield name, chunk if place else {**chunk, **prompt}

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """One chunk."""
        found: dict[str, Any] = {}
        if delta.reasoning:
            found["reasoning_content"] = delta.reasoning
        if delta.content:
            found["content"] = delta.content
        if delta.call is not None and self._request.options["functions"]:
            named = {"name": delta.name} if delta.name else {}
            found["function_call"] = {**named, "arguments": delta.arguments}
        elif delta.call is not None:
            call: dict[str, Any] = {"index": delta.call, "function": {"arguments": delta.arguments}}
            if delta.name:
                call |= {"id": delta.call_id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}
            found["tool_calls"] = [call]
        yield self._chunk(place, found)

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """The reason why each choice ended, then the usage if it was asked for."""
        for place, answer in enumerate(answers):
            logprobs = _logprobs(answer) if self._request.wants_logprobs else None
            more = _token_ids(answer) if self._request.wants_token_ids else {}
            _shown(self._request, answer.message)
            yield self._chunk(place, {}, finish_reason=_finish_reason(self._request, answer), logprobs=logprobs, **more)
        if self._request.options["usage"]:
            yield "", {**_head(self._request, "chat.completion.chunk"), "choices": [], "usage": _usage(answers)}
        yield "", "[DONE]"

    def error(self, refused: Refused) -> Iterator[Event]:
        """An object with the error, which clients raise."""
        yield "error", self._dialect.error(refused)

    def _chunk(self, place: int, delta: dict[str, Any], **more: Any) -> Event:
        choice = {"index": place, "delta": delta, "finish_reason": None, **more}
        return "", {**_head(self._request, "chat.completion.chunk"), "choices": [choice]}


def _shown(request: ChatRequest, message: Message) -> Message:
    """A reply as its client knows calls."""
    functions: FunctionCalls | None = request.options["functions"]
    calls = message.get("tool_calls")
    if functions is None or not calls:
        return message
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"function_call": functions.said(calls[0])}


def _finish_reason(request: ChatRequest, answer: ChatAnswer) -> str:
    return "function_call" if request.options["functions"] and answer.finish_reason == "tool_calls" else answer.finish_reason


def _choice(body: dict[str, Any]) -> Any:
    """The choice of a tool, or of a function in its earlier form."""
    choice = body.get("function_call")
    if body.get("tool_choice") is not None or choice is None:
        return body.get("tool_choice")
    return {"type": "function", "name": choice.get("name")} if isinstance(choice, dict) else choice


def _structured_outputs(body: dict[str, Any]) -> dict[str, Any] | None:
    """The form of the text that vLLM's clients ask for, under present or earlier names; None for any form."""
    found = dict(wanted(body, "structured_outputs", dict, {}))
    found |= {kind: body[f"guided_{kind}"] for kind in GUIDED if body.get(f"guided_{kind}") is not None}
    found = {kind: value for kind, value in found.items() if value not in (None, False)}
    for kind, value in found.items():
        if not isinstance(value, FORMS.get(kind, object)):
            raise Refused(f"structured_outputs.{kind} cannot be a {type(value).__name__}", code="unsupported_structured_outputs")
    if not all(isinstance(choice, str) for choice in found.get("choice", [])):
        raise Refused("structured_outputs.choice must be a list of texts", code="unsupported_structured_outputs")
    return found if FORMS.keys() & found.keys() else None


def response_format(form: dict[str, Any] | None, *, where: str) -> dict[str, Any] | None:
    """The form of the text, None for any."""
    kind = form.get("type") if form else "text"
    if kind == "json_schema" and not isinstance((form or {}).get("json_schema", {}), dict):
        raise Refused(f"{where}.json_schema must be an object with a name and a schema", code="unsupported_response_format")
    if kind in ("json_schema", "json_object"):
        return form
    if kind in (None, "text"):
        return None
    raise Refused(f"{where}.type must be text, json_object or json_schema, not {kind!r}", code="unsupported_response_format")


def _head(request: ChatRequest, kind: str) -> dict[str, Any]:
    options = request.options
    return {"id": options["id"], "object": kind, "created": options["created"], "model": options["model"]}


def _message(message: Any, where: str) -> Message:
    """A message as chat templates take it. Raises Refused for content that they cannot express."""
    role, content = ROLES[role_of(message, ROLES, where)], message.get("content")
    if role == TOOL:
        return tool_result(content, call_id=message.get("tool_call_id"), where=f"{where}.content")
    separator = "" if role == ASSISTANT else "\n"  # the parts of a reply are what the model wrote
    found: Message = {"role": role, "content": text_of(content, where=f"{where}.content", separator=separator)}
    if role == ASSISTANT:
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            found["reasoning_content"] = text_of(reasoning, where=f"{where}.reasoning_content")
        if calls := wanted(message, "tool_calls", list, []):
            found["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return found


def _call(call: Any, where: str) -> dict[str, Any]:
    function = entry(entry(call, where).get("function"), f"{where}.function")
    return tool_call(function.get("name"), function.get("arguments"), call_id=call.get("id"), where=where)


def _tool(tool: Any, where: str) -> dict[str, Any]:
    return function_tool(entry(tool, where).get("function"), where)


def _logprobs(answer: ChatAnswer) -> dict[str, Any]:
    """The logprobs of the sampled tokens; their texts are ids, because a token may not be valid text."""
    turn = answer.turn
    pairs = zip(turn.output_ids, turn.logprobs, strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []} for token, logprob in pairs
        ],
        "refusal": None,
    }


def _prompt_ids(usage: Usage) -> dict[str, Any]:
    """The ids of the prompt as vLLM answers `return_token_ids`; null behind an endpoint that shows no ids."""
    return {"prompt_token_ids": None if usage.prompt_ids is None else list(usage.prompt_ids)}


def _token_ids(answer: ChatAnswer) -> dict[str, Any]:
    """The sampled ids as vLLM answers `return_token_ids`, and the version of the weights that sampled each of them."""
    if answer.usage.prompt_ids is None:
        return {"token_ids": None, "weight_versions": None}
    return {"token_ids": list(answer.turn.output_ids), "weight_versions": list(answer.turn.weight_versions)}


def _usage(answers: list[ChatAnswer]) -> dict[str, Any]:
    prompt, completion = answers[0].usage.prompt_tokens, sum(answer.usage.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answers[0].usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.usage.reasoning_tokens for answer in answers)},
    }
