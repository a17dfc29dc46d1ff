"""Chat messages in one form, and the digests by which a conversation that a client sends again is recognized.

The form is that of OpenAI's chat API, which chat templates take:

    {"role": "assistant", "content": "Let me see.", "reasoning_content": "…", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"Ada\\"}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "content": "…"}
"""

import hashlib
import json
import re
from typing import Any

import orjson

from vime.trajectory.plain_text import encodable
from vime.types import Message

ASSISTANT, TOOL = "assistant", "tool"
DIGEST_BYTES = 16
LONG_ARGUMENTS = 1000
"""Number of characters; longer arguments that come back at less than half their length were left out to save room."""
_LONG_NUMBER = re.compile(r"\d{19}")
"""orjson reads an integer beyond 64 bits as a float."""
UNCHECKED = 400
"""Number of characters or bytes; orjson writes 254 levels, and a shorter text has fewer."""


def chain(before: bytes, message: Message) -> bytes:
    """The digest of a conversation whose last message is this one; `before` is that of the messages before it.

    It covers the fields that a client sends back unchanged: role, text, the ids and names of tool calls, and the call that a
    result belongs to. Reasoning and arguments are left out, because clients drop the one and complete or trim the other
    (`likeness` compares them), and so is white space around the text of a reply. A call without an id counts with its arguments,
    as parsed JSON.
    """
    calls = [
        [call["id"], call["function"]["name"]] if call.get("id") else [call["function"]["name"], _arguments(call)]
        for call in calls_of(message)
    ]
    text = message.get("content") or ""
    form = [message["role"], text.strip() if message["role"] == ASSISTANT else text, calls, message.get("tool_call_id")]
    return _digest(before, form)


def root(tools: list[dict[str, Any]] | None, caller: str = "") -> bytes:
    """The digest of a conversation of this caller without messages, in which these tools are offered."""
    return _digest(caller.encode(), tools or [])


def _digest(before: bytes, form: Any) -> bytes:
    try:
        written = orjson.dumps(form, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a surrogate pair, or an integer beyond 64 bits
        written = json.dumps(form, sort_keys=True).encode()
    return hashlib.blake2b(before + written, digest_size=DIGEST_BYTES).digest()


def calls_of(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message."""
    return message.get("tool_calls") or []


def read_json(text: str | bytes) -> Any:
    """A text as JSON, with U+FFFD for escaped halves of surrogate pairs.

    Raises ValueError for text that is not JSON, or is nested so deeply that it could not be written again as a part.
    """
    try:
        found = orjson.loads(text)
    except ValueError:
        if (b"\\u" if isinstance(text, bytes) else "\\u") not in text:  # type: ignore[operator]
            raise
        found = orjson.loads(encodable(json.dumps(_read(text), ensure_ascii=False)))
    if len(text) > UNCHECKED:
        try:
            orjson.dumps([[[[[[found]]]]]])  # a little deeper, as a part of something else
        except TypeError as error:
            raise ValueError(f"it is nested too deeply: {error}") from error
    return found


def parsed(arguments: Any) -> Any:
    """The arguments of a tool call as JSON, or as they are if a model wrote no JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = read_json(arguments)
    except ValueError:
        return arguments
    return _read(arguments) if _LONG_NUMBER.search(arguments) else found


def _read(text: str | bytes) -> Any:
    """A text as JSON, by the standard library. Raises ValueError for thousands of digits and for too deep a text as well."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


EQUAL, ALIKE, OTHER = 2, 1, 0


def likeness(sent: Message, held: Message) -> int:
    """The likeness between a reply that a client sent back and the one that it got, if their digests are equal.

    EQUAL: the arguments of its calls are unchanged as well; reasoning may be left out, and so may the white space around it.
    ALIKE: the ids of its calls are unchanged, but the arguments are not; Claude Code adds default values and removes white space.
    OTHER: reasoning was edited, or long arguments were left out.
    """
    reasoning = (sent.get("reasoning_content") or "").strip()
    if reasoning and reasoning != (held.get("reasoning_content") or "").strip():
        return OTHER
    found = EQUAL
    for one, other in zip(calls_of(sent), calls_of(held)):
        if _arguments(one) != _arguments(other):
            size, size_held = len(str(one["function"]["arguments"])), len(str(other["function"]["arguments"]))
            if size_held > LONG_ARGUMENTS and 2 * size < size_held:
                return OTHER
            found = ALIKE
    return found


def _arguments(call: dict[str, Any]) -> Any:
    return parsed(call["function"]["arguments"])


def in_call_order(messages: list[Message]) -> list[Message]:
    """The messages with the results of parallel tool calls in the order of the calls."""
    ordered: list[Message] = []
    start = 0
    while start < len(messages):
        end = start + 1
        ordered.append(messages[start])
        places = {call.get("id"): place for place, call in enumerate(calls_of(messages[start]))}
        while places and end < len(messages) and messages[end]["role"] == TOOL:
            end += 1
        ordered += sorted(messages[start + 1 : end], key=lambda result: places.get(result.get("tool_call_id"), len(places)))
        start = end
    return ordered
