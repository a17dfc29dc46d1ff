"""A chat template as a trajectory needs it: whole prompts, what it puts between a sampled reply and the next one, and whether
it renders earlier messages differently once others follow.

The text of a sampled reply is never rendered again, so a prompt costs only as much as its new part.
"""

import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from jinja2.exceptions import TemplateError, TemplateRuntimeError

from vime.thinking import CLOSE, OPEN
from vime.trajectory.messages import ASSISTANT, calls_of
from vime.trajectory.plain_text import Segment, after, control_tokens, joined
from vime.types import Integers, Message

SYSTEM = "system"
THINKING_DROPPED = "thinking_dropped"
REWRITTEN = "template_rewrites"
FIELD, TEXT = "field", "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The properties that decide how a template renders a conversation that goes on behind a reply.

    Example of a reply with thinking and a tool call, followed by two results: `Shape(thinks=("", "field"), calls=True,
    roles=("tool", "tool"))`.
    """

    thinks: tuple[str, str]
    """The place of the reasoning (`thinking_of`) in replies before the last one of the sequence, and in the last one."""
    calls: bool
    """True if the last reply calls tools."""
    roles: tuple[str, ...]
    """Roles of the messages that follow, without repetitions."""


class ChatTemplate:
    """The chat template of one model with its arguments (`enable_thinking`, say)."""

    def __init__(self, tokenizer: Any, arguments: dict[str, Any] | None = None) -> None:
        self._tokens = control_tokens(tokenizer)
        self._arguments = arguments or {}
        self._changes: dict[Shape, str] = {}
        self._late_system: bool | None = None
        self.end = self._find_end()
        """The control token with which the template ends a reply, "" if it ends replies without one."""

    def fitted(self, messages: list[Message]) -> list[Message]:
        """The messages with those of the system where the template takes them.

        Some templates take a system message only at the beginning: several at the beginning become one, and a later one becomes a
        message of the user.
        """
        late = [place for place, message in enumerate(messages) if place and message["role"] == SYSTEM]
        if not late or self._takes_late_system():
            return messages
        num_first = next((place for place, message in enumerate(messages) if message["role"] != SYSTEM), len(messages))
        first: list[Message] = []
        if num_first:
            first = [{"role": SYSTEM, "content": "\n\n".join(message["content"] for message in messages[:num_first])}]
        rest = [message | {"role": "user"} if message["role"] == SYSTEM else message for message in messages[num_first:]]
        return first + rest

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[Segment]:
        """The whole conversation, with the beginning of the next reply."""
        arguments: dict[str, Any] = {"tools": tools} if tools else {}
        return self._render(messages, **arguments)

    def continuation(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[Segment]:
        """The whole conversation, whose last message is the beginning of a reply that is to be continued."""
        arguments: dict[str, Any] = {"tools": tools} if tools else {}
        return self._tokens.segments(messages, continue_final_message=True, **(self._arguments | arguments))

    def reply(self, messages: list[Message], reply: Message, tools: list[dict[str, Any]] | None) -> str:
        """The template's text for a reply to these messages, up to its end."""
        arguments: dict[str, Any] = {"tools": tools} if tools else {}
        before = joined(self._render(messages, **arguments))
        whole = joined(self._tokens.segments([*messages, reply], **(self._arguments | arguments)))
        start = next((place for place, pair in enumerate(zip(before, whole)) if pair[0] != pair[1]), min(len(before), len(whole)))
        written = whole[start:]
        return written[: written.rindex(self.end)] if self.end and self.end in written else written

    def between(self, reply: Message, new: list[Message], *, written: Integers) -> list[Segment]:
        """The segments between the tokens of a reply and those of the next: `new` messages and the template's additions.

        `written` are the reply's own tokens. Unless the last one is the template's own end, that is added: a model may end a
        reply with another token (Qwen's `<|endoftext|>`), or at a stop text.
        """
        mark = _mark()
        segments = self._render([{"role": "user", "content": "?"}, _stand_in(reply, content=mark), *new])
        text = joined(segments)
        start = text.rindex(mark) + len(mark)
        if self.end:
            is_closed = len(written) > 0 and self._tokens.encode([Segment(text=self.end)]) == [written[-1]]
            start = text.index(self.end, start) + (len(self.end) if is_closed else 0)
        return after(segments, start)

    def change(self, shape: Shape) -> str:
        """The reason why earlier messages are rendered differently in a conversation of this shape: a constant above, or ""."""
        if shape not in self._changes:
            self._changes[shape] = self._find_change(shape)
        return self._changes[shape]

    def encode(self, segments: list[Segment], known: dict[str, np.ndarray]) -> list[int]:
        """Token ids; texts between two control tokens that are already `known` are not tokenized again."""
        return self._tokens.encode(segments, known)

    def text(self, ids: Integers) -> str:
        """The text of sampled tokens, without special ones."""
        return self._tokens.tokenizer.decode(ids, skip_special_tokens=True)

    def _takes_late_system(self) -> bool:
        if self._late_system is None:
            roles = ("system", "user", "system", "user")
            try:
                self._render([{"role": role, "content": "?"} for role in roles])
                self._late_system = True
            except TemplateError:
                self._late_system = False
        return self._late_system

    def _find_change(self, shape: Shape) -> str:
        """Renders a short conversation of this shape, with marks in place of texts, and checks what happened to the marks."""
        first, second, content = _mark(), _mark(), _mark()
        before: list[Message] = [
            {"role": "user", "content": "question"},
            _reply("first", reasoning=first, place=shape.thinks[0], num_calls=1),
            {"role": "tool", "content": "result", "tool_call_id": "call00000"},
        ]
        last = _reply(content, reasoning=second, place=shape.thinks[1], num_calls=int(shape.calls))
        following: list[Message] = [
            {"role": role, "content": "?", **({"tool_call_id": "call00000"} if role == "tool" else {})} for role in shape.roles
        ]
        try:
            held, whole = joined(self._render(before)), joined(self._render([*before, last, *following]))
        except TemplateError:  # a template without tools, perhaps
            del before[1:]
            held, whole = joined(self._render(before)), joined(self._render([*before, last, *following]))
        if (first in held and first not in whole) or (shape.thinks[1] and second not in whole):
            return THINKING_DROPPED
        own_text = whole.removeprefix(held).partition(content)[0]
        return "" if whole.startswith(held) and (shape.thinks[1] or not own_text) else REWRITTEN

    def _find_end(self) -> str:
        mark = _mark()
        messages: list[Message] = [{"role": "user", "content": "?"}, {"role": ASSISTANT, "content": mark}]
        text = joined(self._tokens.segments(messages, **self._arguments))
        return self._tokens.first(text[text.index(mark) + len(mark) :])

    def _render(self, messages: list[Message], **arguments: Any) -> list[Segment]:
        return self._tokens.segments(messages, add_generation_prompt=True, **self._arguments, **arguments)


def chat_template(tokenizer: Any, arguments: dict[str, Any]) -> ChatTemplate:
    """The chat template of a model, the same one for all its sessions, because what it finds out holds for each."""
    return _chat_template(tokenizer, orjson.dumps(arguments))


@lru_cache(maxsize=64)
def _chat_template(tokenizer: Any, arguments: bytes) -> ChatTemplate:
    return ChatTemplate(tokenizer, orjson.loads(arguments))


def thinking_of(message: Message) -> str:
    """The place of a reply's reasoning: a field of its own, its text, or "" if it has none."""
    if message.get("reasoning_content"):
        return FIELD
    return TEXT if CLOSE in (message.get("content") or "") else ""


def shape_of(thinks: tuple[str, str], reply: Message, new: list[Message]) -> Shape:
    """The shape of a conversation in which `new` messages follow a reply."""
    roles = [message["role"] for message in new]
    return Shape(
        thinks=thinks,
        calls=bool(calls_of(reply)),
        roles=tuple(role for place, role in enumerate(roles) if place == 0 or role != roles[place - 1]),
    )


def _stand_in(reply: Message, *, content: str) -> Message:
    """A reply with the same number of calls, the same ids, and another text: the model's own text is not rendered.

    The calls have this text for a name, because some templates leave out the text beside calls.
    """
    ids = [call.get("id") or "call00000" for call in calls_of(reply)]
    return _reply(content, ids=ids, name=content)


def _reply(
    content: str,
    *,
    reasoning: str = "",
    place: str = "",
    num_calls: int = 0,
    ids: list[str] | None = None,
    name: str = "f",
) -> Message:
    ids = [f"call{number:05}" for number in range(num_calls)] if ids is None else ids
    message: Message = {"role": ASSISTANT, "content": f"{OPEN}{reasoning}{CLOSE}{content}" if place == TEXT else content}
    if place == FIELD:
        message["reasoning_content"] = reasoning
    if ids:
        function = {"name": name, "arguments": {}}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return message


def _mark() -> str:
    return f"mark{secrets.token_hex(12)}"


def turn_ahead(tokenizer: Any, text: str) -> str:
    """A text as a turn of its own ahead of a conversation: of the system, or of the user where the template shows no such turn.

    Raises TemplateError if it shows neither.
    """
    for role in (SYSTEM, "user"):
        try:
            rendered = tokenizer.apply_chat_template([{"role": role, "content": text}], tokenize=False)
        except TemplateError:  # Qwen3.5's demands a user
            continue
        if text.strip() in rendered:  # Gemma 3's shows a system message within that of a user alone
            return rendered
    raise TemplateRuntimeError("the chat template shows a text neither as a system message nor as a user's")
