"""OpenAI's Responses: `POST /v1/responses`, and the answers that a client finds again by their id."""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from vime.chat.request import ChatAnswer, ChatRequest, Delta, Refused, Usage
from vime.gateway.body import allowed_tools, count_of, sampling_of, tool_choice, wanted
from vime.gateway.chat_completions import response_format
from vime.gateway.client_tools import call_item
from vime.gateway.dialect import Event, new_id
from vime.gateway.fields import RESPONSES
from vime.gateway.parts import CALL, REASONING, Part, Parts, Step
from vime.gateway.response_input import COMPACTION_TRIGGER, compaction_item, custom_input, messages_of, tools_of
from vime.types import Message

MOST_KEPT = 1000
"""Number of answers of one session that can be found again."""
ECHOED = ("metadata", "instructions", "previous_response_id", "temperature", "top_p", "max_output_tokens", "reasoning", "text")
"""Fields of a request that an answer repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptResponse:
    """An answer that its client may refer to."""

    messages: list[Message]
    """The conversation up to and with the answer, without its instructions."""
    body: dict[str, Any]
    """The answer as it was sent."""


class Responses:
    """The protocol, as the SDKs of OpenAI, its agents and Codex speak it; keeps answers for `previous_response_id`."""

    route: ClassVar[str] = "/v1/responses"
    count_route: ClassVar[str] = "/v1/responses/input_tokens"

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()

    def parse(self, body: dict[str, Any]) -> ChatRequest:
        """Raises Refused for images, files and background work; tools that OpenAI's servers would run are left out."""
        if wanted(body, "background", bool, False):
            raise Refused("background: answers are given at once; leave it out")
        if body.get("conversation") is not None:
            raise Refused("conversation: use previous_response_id, or send all of the input")
        previous = wanted(body, "previous_response_id", str)
        before = self._find(previous).messages if previous else []
        tools = tools_of(wanted(body, "tools", list, []))
        choice, functions = allowed_tools(body.get("tool_choice"), tools.functions)
        conversation = [*before, *messages_of(body.get("input"), self._item)]
        if not conversation:
            raise Refused("input must contain at least one message")
        instructions = wanted(body, "instructions", str)
        return ChatRequest(
            messages=[{"role": "system", "content": instructions}, *conversation] if instructions else conversation,
            tools=functions,
            max_tokens=count_of(body, "max_output_tokens"),
            stream=wanted(body, "stream", bool, False),
            tool_choice=tool_choice(choice, functions),
            parallel_calls=wanted(body, "parallel_tool_calls", bool, True),
            response_format=_text_format(body),
            sampling=sampling_of(body),
            notes=RESPONSES.notes(body) + tools.notes,
            options={
                "head": _head(body),
                "conversation": conversation,
                "store": wanted(body, "store", bool, True),
                "tools": tools,
                "compacts": _ends_with_trigger(body.get("input")),
            },
        )

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """A `response`."""
        (answer,) = answers
        return self.complete(request, answer, self.output(request, answer))

    def output(self, request: ChatRequest, answer: ChatAnswer) -> list[dict[str, Any]]:
        """The items of an answer; a single one if the client asked for its history to be compacted."""
        if request.options["compacts"]:
            return [compaction_item(str(answer.message.get("content") or "").strip(), new_id("cmp"))]
        return [self.item(request, part) for part in Parts.of(answer.message)]

    def stream(self, request: ChatRequest) -> "ResponseStream":
        """The answer as a stream of events."""
        return ResponseStream(request, self)

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The tokens of the prompt."""
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

    def error(self, refused: Refused) -> dict[str, Any]:
        """The error as OpenAI's API words it."""
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        return {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.code}}

    def complete(self, request: ChatRequest, answer: ChatAnswer, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole response, which is kept if its client wants to refer to it."""
        is_cut = answer.finish_reason == "length"
        body = request.options["head"] | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": _usage(answer.usage),
        }
        if request.options["store"]:
            conversation = [*request.options["conversation"], answer.message]
            self._kept[body["id"]] = KeptResponse(messages=conversation, body=body)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return body

    def item(self, request: ChatRequest, part: Part, *, whole: bool = True) -> dict[str, Any]:
        """A part of the answer as an item of the output; it begins empty in a stream."""
        status = "completed" if whole else "in_progress"
        if part.kind == REASONING:
            content = [{"type": "reasoning_text", "text": part.text}] if whole else []
            return {"type": "reasoning", "id": new_id("rs"), "summary": [], "content": content, "encrypted_content": None}
        if part.kind == CALL:
            tools = request.options["tools"]
            head = {"id": new_id("fc"), "call_id": part.call_id, "name": part.name, "status": status}
            head |= {"namespace": tools.namespaces[part.name]} if part.name in tools.namespaces else {}
            if part.name in tools.client and (proper := call_item(part.name, part.text)) is not None:
                return {"type": f"{part.name}_call", "id": part.call_id, "call_id": part.call_id, "status": status, **proper}
            if part.name in tools.custom:
                return {"type": "custom_tool_call", **head, "input": custom_input(part.text) if whole else ""}
            return {"type": "function_call", **head, "arguments": part.text if whole else ""}
        content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}] if whole else []
        return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": status, "content": content}

    def kept(self, response_id: str) -> dict[str, Any]:
        """An earlier answer. Raises Refused if there is none."""
        return self._find(response_id).body

    def forget(self, response_id: str) -> dict[str, Any]:
        """Deletes an answer. Raises Refused if there is none."""
        self._find(response_id)
        del self._kept[response_id]
        return {"id": response_id, "object": "response", "deleted": True}

    def _find(self, response_id: str) -> KeptResponse:
        found = self._kept.get(response_id)
        if found is None:
            raise Refused(
                f"there is no response {response_id!r} in this session: it was not stored, was deleted, or is older than the "
                f"latest {MOST_KEPT}; send all of the input instead",
                status=404,
                code="previous_response_not_found",
            )
        return found

    def _item(self, item_id: str) -> dict[str, Any]:
        for kept in reversed(self._kept.values()):
            for item in kept.body["output"]:
                if item["id"] == item_id:
                    return item
        raise Refused(
            f"input: there is no item {item_id!r} in this session; send the item itself", status=404, code="item_not_found"
        )


class Compacting:
    """`POST /v1/responses/compact`: the session's model compacts a conversation, as for `compaction_trigger` in Responses."""

    route: ClassVar[str] = "/v1/responses/compact"
    count_route: ClassVar[str] = ""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self.stream, self.counted, self.error = responses.stream, responses.counted, responses.error

    def parse(self, body: dict[str, Any]) -> ChatRequest:
        """The request of Responses that asks for the same."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else wanted(body, "input", list, [])
        whole = {**body, "input": [*items, {"type": COMPACTION_TRIGGER}], "store": False, "stream": False}
        request = self._responses.parse(whole)
        request.options["asked"] = [item for item in items if isinstance(item, dict) and item.get("role") == "user"]
        return request

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """The messages of the user, and an item that represents all others."""
        found = self._responses.answer(request, answers)
        kept = {key: found[key] for key in ("id", "created_at", "usage")}
        asked = [{"type": "message", "status": "completed", **item, "id": new_id("msg")} for item in request.options["asked"]]
        return {**kept, "object": "response.compaction", "output": [*asked, *found["output"]]}


def _ends_with_trigger(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and given[-1].get("type") == COMPACTION_TRIGGER


def _text_format(body: dict[str, Any]) -> dict[str, Any] | None:
    form = response_format(wanted(wanted(body, "text", dict, {}), "format", dict), where="text.format")
    if form is None or form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}


def _head(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a response that are known before it is made."""
    return {
        **{key: body.get(key) for key in ECHOED},
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": str(body.get("model") or ""),
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "store": body.get("store") is not False,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "truncation": "disabled",
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseStream:
    """The server-sent events of one response: its items, one after the other."""

    def __init__(self, request: ChatRequest, maker: Responses) -> None:
        self._request, self._maker = request, maker
        self._parts = Parts()
        self._items: list[dict[str, Any]] = []
        self._number = 0

    def begin(self, usage: Usage) -> Iterator[Event]:
        """The response without its output."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._request.options["head"])

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """The additions to an item, and the beginnings and ends of items."""
        if self._request.options["compacts"]:  # its one item is known at the end
            return
        for step in self._parts.add(delta):
            yield from self._step(step)

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """The whole response."""
        for step in self._parts.end():
            yield from self._step(step)
        if self._request.options["compacts"]:
            self._items = self._maker.output(self._request, answers[0])
            for kind in ("added", "done"):
                yield self._event(f"response.output_item.{kind}", output_index=0, item=self._items[0])
        body = self._maker.complete(self._request, answers[0], self._items)
        yield self._event(f"response.{body['status']}", response=body)

    def error(self, refused: Refused) -> Iterator[Event]:
        """The response, which has failed."""
        error = {"code": refused.code, "message": refused.message}
        failed = self._request.options["head"] | {"status": "failed", "error": error, "output": self._items}
        yield self._event("response.failed", response=failed)

    def _step(self, step: Step) -> Iterator[Event]:
        what, part, text = step
        if part.kind == CALL and part.name in self._request.options["tools"].client:
            yield from self._step_whole(what, part)
        elif what == "begin":
            self._items.append(self._maker.item(self._request, part, whole=False))
            yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=self._items[-1])
            if part.kind != CALL:
                yield self._of_part("content_part.added", part=self._content(part, ""), content_index=0)
        elif what == "more":
            if not self._is_custom():
                yield self._of_part(f"{_text_kind(part)}.delta", delta=text, **_index(part))
        else:
            yield from self._ended(part)

    def _step_whole(self, what: str, part: Part) -> Iterator[Event]:
        """An item that no pieces make up: it is shown once its call is complete."""
        if what == "begin":
            self._items.append({})
        elif what == "end":
            self._items[-1] = item = self._maker.item(self._request, part)
            for kind in ("added", "done"):
                yield self._event(f"response.output_item.{kind}", output_index=len(self._items) - 1, item=item)

    def _ended(self, part: Part) -> Iterator[Event]:
        item = self._maker.item(self._request, part) | {"id": self._items[-1]["id"]}
        if self._is_custom():  # its text is known once the JSON around it is complete
            yield self._of_part("custom_tool_call_input.delta", delta=item["input"])
            yield self._of_part("custom_tool_call_input.done", input=item["input"])
        elif part.kind == CALL:
            yield self._of_part(f"{_text_kind(part)}.done", arguments=part.text, name=part.name)
        else:
            yield self._of_part(f"{_text_kind(part)}.done", text=part.text, **_index(part))
            yield self._of_part("content_part.done", part=self._content(part, part.text), content_index=0)
        self._items[-1] = item
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _is_custom(self) -> bool:
        return self._items[-1]["type"] == "custom_tool_call"

    def _content(self, part: Part, text: str) -> dict[str, Any]:
        if part.kind == REASONING:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _of_part(self, kind: str, **fields: Any) -> Event:
        place = len(self._items) - 1
        return self._event(f"response.{kind}", item_id=self._items[-1]["id"], output_index=place, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return kind, {"type": kind, "sequence_number": self._number - 1, **fields}


def _text_kind(part: Part) -> str:
    return {REASONING: "reasoning_text", CALL: "function_call_arguments"}.get(part.kind, "output_text")


def _index(part: Part) -> dict[str, Any]:
    """The place of a text in its item; arguments have none."""
    if part.kind == CALL:
        return {}
    return {"content_index": 0} | ({} if part.kind == REASONING else {"logprobs": []})
