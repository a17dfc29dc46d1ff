"""Chat messages in one form, and the digests by which a conversation that a client sends again is recognized.

The form is that of OpenAI's chat API, which chat templates take:

    {"role": "assistant", "content": "Let me see.", "reasoning_content": "…", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"Ada\\"}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "content": "…"}
"""

import hashlib
from typing import Any

import orjson

from vime.types import Message

ASSISTANT, TOOL = "assistant", "tool"
DIGEST_BYTES = 16


def chain(before: bytes, message: Message) -> bytes:
    """The digest of a conversation whose last message is this one; `before` is that of the messages before it.

    It covers what a client sends back unchanged: role, text, tool calls with their arguments as parsed JSON, and the call that a
    result belongs to. Reasoning is left out, because many clients drop it (`same_reasoning` compares it), and so is white space
    around the text of a reply.
    """
    calls = [[call.get("id"), call["function"]["name"], parsed(call["function"]["arguments"])] for call in calls_of(message)]
    text = message.get("content") or ""
    form = [message["role"], text.strip() if message["role"] == ASSISTANT else text, calls, message.get("tool_call_id")]
    return hashlib.blake2b(before + orjson.dumps(form, option=orjson.OPT_SORT_KEYS), digest_size=DIGEST_BYTES).digest()


def root(tools: list[dict[str, Any]] | None) -> bytes:
    """The digest of a conversation without messages, in which these tools are offered."""
    return hashlib.blake2b(orjson.dumps(tools or [], option=orjson.OPT_SORT_KEYS), digest_size=DIGEST_BYTES).digest()


def calls_of(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message."""
    return message.get("tool_calls") or []


def parsed(arguments: Any) -> Any:
    """The arguments of a tool call as JSON, or as they are if a model wrote no JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def same_reasoning(sent: Message, held: Message) -> bool:
    """Whether a client sent a reply's reasoning back as it was, or left it out."""
    reasoning = sent.get("reasoning_content")
    return not reasoning or reasoning == held.get("reasoning_content")


def in_call_order(messages: list[Message]) -> list[Message]:
    """The messages with the results of parallel tool calls in the order of the calls, whichever result came first."""
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
