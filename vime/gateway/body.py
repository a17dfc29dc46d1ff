"""Reads the body of a request of any protocol: fields of a given type, texts, tools, and calls with their results."""

from collections.abc import Collection
from typing import Any

from vime.chat.request import Refused
from vime.gateway.fields import SAMPLING
from vime.trajectory.messages import TOOL, parsed
from vime.types import Message

TEXT_TYPES = ("text", "input_text", "output_text")


def text_of(content: Any, *, where: str, separator: str = "\n") -> str:
    """A message's content as text: a string, nothing, or a list of text parts, which are joined by newlines as vLLM does.

    Raises Refused for other parts, images for example.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refused(f"{where} must be a string or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in TEXT_TYPES and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refused(f"{where}: parts of type {kind!r} are not supported; send text", code="unsupported_content")
    return separator.join(texts)


def wanted(body: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of a body, `default` if it is absent or null. Raises Refused if it is of another type."""
    value = body.get(key)
    if value is None:
        return default
    is_flag = isinstance(value, bool) and kind is not bool
    if is_flag or not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
        raise Refused(f"{key} must be of type {names}, not {type(value).__name__}")
    return value


def count_of(body: dict[str, Any], *keys: str) -> int | None:
    """The first of these fields that is set. Raises Refused if it is not a positive number."""
    for key in keys:
        found = wanted(body, key, int)
        if found is not None and found < 1:
            raise Refused(f"{key} must be at least 1, not {found}")
        if found is not None:
            return found
    return None


def sampling_of(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a request."""
    return {key: body[key] for key in SAMPLING if body.get(key) is not None}


def entry(value: Any, where: str) -> dict[str, Any]:
    """An entry of a list that must be an object. Raises Refused for another one."""
    if not isinstance(value, dict):
        raise Refused(f"{where} must be an object, not {type(value).__name__}")
    return value


def role_of(message: Any, roles: Collection[str], where: str) -> str:
    """The role of a message. Raises Refused if it is none of `roles`."""
    role = entry(message, where).get("role")
    if not isinstance(role, str) or role not in roles:
        raise Refused(f"{where}.role must be one of {', '.join(roles)}, not {role!r}")
    return role


def function_tool(tool: Any, where: str, *, schema: str = "parameters") -> dict[str, Any]:
    """A tool as chat templates take it, from an object with name, description, and parameters under `schema`."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise Refused(f"{where} must be a function with a name")
    known = {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get(schema)}
    return {"type": "function", "function": {key: value for key, value in known.items() if value is not None}}


def allowed_tools(choice: Any, tools: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
    """The choice, and the tools among which it chooses: all of them unless it is one of `allowed_tools`."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice, tools
    found = choice["allowed_tools"] if isinstance(choice.get("allowed_tools"), dict) else choice
    entries = [entry(tool, "tool_choice.tools") for tool in wanted(found, "tools", list, [])]
    names = [_name_of(tool) for tool in entries]
    return found.get("mode"), [tool for tool in tools if tool["function"]["name"] in names]


def tool_choice(choice: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any]:
    """The choice of tools that may or must be called, in the form of Chat Completions; Responses puts the name elsewhere."""
    if choice in (None, "auto", "none", "required"):
        return choice or "auto"
    if isinstance(choice, dict) and isinstance(choice.get("type"), str):
        if choice["type"] in ("function", "custom"):
            return named_choice(_name_of(choice), tools)
        if choice["type"] in [tool["function"]["name"] for tool in tools]:  # a shell, say
            return named_choice(choice["type"], tools)
    raise Refused(f"tool_choice must be auto, none, required or one function, not {choice!r}", code="unsupported_tool_choice")


def _name_of(choice: dict[str, Any]) -> Any:
    function = choice.get("function") or choice.get("custom")
    return function.get("name") if isinstance(function, dict) else choice.get("name") or choice.get("type")


def named_choice(name: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice of one tool that must be called. Raises Refused if it is not among the tools."""
    if name not in [tool["function"]["name"] for tool in tools]:
        raise Refused(f"tool_choice: the function {name!r} is not among the tools")
    return {"type": "function", "function": {"name": name}}


def tool_call(name: Any, arguments: Any, *, call_id: Any, where: str) -> dict[str, Any]:
    """A call as chat templates take it; as in vLLM's server, missing arguments become {} and a JSON object is parsed."""
    if not isinstance(name, str):
        raise Refused(f"{where} must have a function with a name")
    is_blank = arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null"))
    found = {} if is_blank else parsed(arguments)
    function = {"name": name, "arguments": found if isinstance(found, dict) else arguments}
    return {"id": str(call_id or ""), "type": "function", "function": function}


def tool_result(content: Any, *, call_id: Any, where: str) -> Message:
    """The result of a call as chat templates take it."""
    if call_id is not None and not isinstance(call_id, str):
        raise Refused(f"{where} must name its call by a string")
    return {"role": TOOL, "content": text_of(content, where=where), "tool_call_id": call_id or ""}
