"""The server-sent events of OpenAI's Responses."""

from collections.abc import Iterator
from typing import Any, Protocol

from vime.chat.request import ChatAnswer, ChatRequest, Delta, Refused, Usage
from vime.gateway.dialect import Event
from vime.gateway.parts import CALL, REASONING, Part, Parts, Step


class Maker(Protocol):
    """Makes the objects that the events contain (`vime.gateway.responses.Responses`)."""

    def item(self, request: ChatRequest, part: Part, *, whole: bool = True) -> dict[str, Any]: ...

    def output(self, request: ChatRequest, answer: ChatAnswer) -> list[dict[str, Any]]: ...

    def complete(self, request: ChatRequest, answer: ChatAnswer, output: list[dict[str, Any]]) -> dict[str, Any]: ...


class ResponseStream:
    """The events of one response: its items, one after the other."""

    def __init__(self, request: ChatRequest, maker: Maker) -> None:
        self._request, self._maker = request, maker
        self._parts = Parts()
        self._items: list[dict[str, Any]] = []
        self._number = 0

    def begin(self, usage: Usage) -> Iterator[Event]:
        """The response without its output."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._request.options["head"])

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """What is added to an item, and where items begin and end."""
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
    """Where in its item a text stands; arguments stand nowhere."""
    if part.kind == CALL:
        return {}
    return {"content_index": 0} | ({} if part.kind == REASONING else {"logprobs": []})
