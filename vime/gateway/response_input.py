"""The input from a client of Responses: items and tools, as the messages and functions that chat templates take."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from vime.chat.request import Refused
from vime.gateway.body import entry, function_tool, role_of, text_of, tool_call, tool_result, wanted
from vime.gateway.client_tools import CALLS, OUTPUTS, call_arguments, openai_function, output_text
from vime.trajectory.messages import ASSISTANT, parsed
from vime.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user", ASSISTANT: ASSISTANT}
CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Parameters of the function that represents a custom tool, which takes one text."""
COMPACTION, COMPACTION_TRIGGER = "compaction", "compaction_trigger"
COMPACT = (
    "Sum up this conversation, so that somebody can go on with its work who sees nothing but your summary: what was asked for, "
    "what was done and found, and what is left to do. Call no tool."
)
"""The instruction to the model when a client asks for its history to be compacted."""
COMPACTED = "The conversation so far, summed up:\n\n"
Item = dict[str, Any]


def messages_of(given: Any, find: Callable[[str], Item]) -> list[Message]:
    """The messages that items represent; `find` looks up the items of earlier answers.

    Reasoning, text and calls that follow one another are one message of the assistant. Raises Refused for images and files.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is None:
        return []
    if not isinstance(given, list):
        raise Refused(f"input must be a string or a list of items, not {type(given).__name__}")
    messages: list[Message] = []
    for place, item in enumerate(given):
        where = f"input[{place}]"
        found = entry(item, where)
        if found.get("type") == "item_reference":
            found = find(wanted(found, "id", str, ""))
        message = _message(found, where)
        goes_on = messages and messages[-1]["role"] == message["role"] == ASSISTANT
        if goes_on:
            _add(messages[-1], message)
        else:
            messages.append(message)
    return messages


@dataclass(kw_only=True, slots=True)
class Tools:
    """The tools of a request."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    """Functions as chat templates take them."""
    custom: set[str] = field(default_factory=set)
    """Names of those that take one text in place of JSON."""
    client: set[str] = field(default_factory=set)
    """Names of those whose calls have items of their own (`vime.gateway.client_tools`)."""
    namespaces: dict[str, str] = field(default_factory=dict)
    """The namespace of a tool by the tool's name, for those that have one."""
    notes: list[str] = field(default_factory=list)
    """Notes on tools that cannot be offered to the model, because OpenAI's servers would run them."""


def tools_of(given: list[Any], found: Tools | None = None) -> Tools:
    """The tools in a list; those of a namespace are offered by their own names."""
    found = found or Tools()
    for place, tool in enumerate(given):
        where = f"tools[{place}]"
        kind = entry(tool, where).get("type")
        if kind == "function":
            found.functions.append(function_tool(tool, where))
        elif kind == "custom":
            found.functions.append(function_tool({**tool, "parameters": CUSTOM}, where))
            found.custom.add(tool["name"])
        elif (function := openai_function(tool)) is not None:
            found.functions.append(function_tool(function, where))
            found.client.add(function["name"])
        elif kind == "namespace":
            num_before = len(found.functions)
            tools_of(wanted(tool, "tools", list, []), found)
            names = [inner["function"]["name"] for inner in found.functions[num_before:]]
            found.namespaces |= dict.fromkeys(names, wanted(tool, "name", str, ""))
        else:
            found.notes.append(
                f"the tool {kind} is not offered to the model: OpenAI's servers would run it, or it needs pictures"
            )
    return found


def compaction_item(summary: str, item_id: str) -> Item:
    """An item that represents a conversation; its content is opaque to clients, which send it back."""
    return {"type": COMPACTION, "id": item_id, "encrypted_content": base64.b64encode(summary.encode()).decode()}


def _summary(item: Item, where: str) -> str:
    try:
        return base64.b64decode(wanted(item, "encrypted_content", str, ""), validate=True).decode()
    except ValueError as error:
        raise Refused(f"{where}: this compaction was not made here, so it cannot be read", code="unsupported_item") from error


def custom_input(arguments: str) -> str:
    """The text that a call passes to a custom tool."""
    found = parsed(arguments)
    return str(found.get("input", "")) if isinstance(found, dict) else arguments


def _message(item: Item, where: str) -> Message:
    kind = item.get("type") or "message"
    if not isinstance(kind, str):
        raise Refused(f"{where}.type must be a string, not {type(kind).__name__}")
    if kind == "message":
        role = ROLES[role_of(item, ROLES, where)]
        separator = "" if role == ASSISTANT else "\n"
        return {"role": role, "content": text_of(item.get("content"), where=f"{where}.content", separator=separator)}
    if kind == "reasoning":
        parts = wanted(item, "content", list) or wanted(item, "summary", list, [])
        texts = [wanted(entry(part, where), "text", str, "") for part in parts]
        return {"role": ASSISTANT, "content": "", "reasoning_content": "".join(texts)}
    if kind == "function_call":
        call = tool_call(item.get("name"), item.get("arguments"), call_id=item.get("call_id"), where=where)
        return {"role": ASSISTANT, "content": "", "tool_calls": [call]}
    if kind == "custom_tool_call":
        arguments = orjson.dumps({"input": wanted(item, "input", str, "")}).decode()
        call = tool_call(item.get("name"), arguments, call_id=item.get("call_id"), where=where)
        return {"role": ASSISTANT, "content": "", "tool_calls": [call]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        return tool_result(item.get("output"), call_id=item.get("call_id"), where=f"{where}.output")
    if kind in CALLS:
        call = tool_call(CALLS[kind], call_arguments(CALLS[kind], item), call_id=item.get("call_id"), where=where)
        return {"role": ASSISTANT, "content": "", "tool_calls": [call]}
    if kind in OUTPUTS:
        return tool_result(output_text(item), call_id=item.get("call_id") or item.get("id"), where=where)
    if kind == COMPACTION_TRIGGER:
        return {"role": "user", "content": COMPACT}
    if kind == COMPACTION:
        return {"role": "user", "content": COMPACTED + _summary(item, where)}
    raise Refused(f"{where}: items of type {kind!r} are not supported", code="unsupported_item")


def _add(message: Message, more: Message) -> None:
    """Appends a part of the assistant's message to it."""
    message["content"] += more["content"]
    if reasoning := message.get("reasoning_content", "") + more.get("reasoning_content", ""):
        message["reasoning_content"] = reasoning
    if calls := message.get("tool_calls", []) + more.get("tool_calls", []):
        message["tool_calls"] = calls
