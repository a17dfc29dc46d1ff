"""Reads the tool calls of a reply with vLLM's own parsers, from the sampled tokens alone."""

import json
from dataclasses import dataclass, field
from typing import Any

from vime.thinking import CLOSE, OPEN
from vime.types import Message, Turn
from vime.vllm_parts import call_parser, parsed_request


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call. Example: `ToolCall(name="search", arguments={"query": "…"})`; a call that cannot be made says why in `error`."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedReply:
    """The content and the tool calls of a reply.

    Example: `ParsedReply(content="I look it up.", thinking="…", calls=[ToolCall(…)])`. `malformed` if the reply begins a call
    that cannot be read.
    """

    content: str
    thinking: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    malformed: bool = False


class ToolCallReader:
    """Reads the replies of one model; make one per process, because vLLM's parsers are slow to import."""

    def __init__(self, tokenizer: Any, *, parser: str = "hermes") -> None:
        """Raises KeyError if vLLM has no such parser."""
        self._tokenizer = tokenizer
        self._parser: Any = call_parser(parser)

    def read(self, turn: Turn, tools: list[dict[str, Any]], *, starts_thinking: bool = False) -> ParsedReply:
        """The reply's content and its calls, checked against the schemas of `tools` (OpenAI's form).

        Calls within the thinking are ignored. `starts_thinking` if the prompt already began the thinking.
        """
        ids = turn.output_ids
        ids = ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        thinking, text = _split_thinking(text, starts_thinking=starts_thinking)
        found = self._extract(text, tools)
        schemas = _schemas(tools)
        calls = [_checked(call.function.name, call.function.arguments, schemas) for call in found.tool_calls]
        malformed = not calls and self._start_word() in text
        return ParsedReply(content=(found.content or "").strip(), thinking=thinking, calls=calls, malformed=malformed)

    def _extract(self, text: str, tools: list[dict[str, Any]]) -> Any:
        request = parsed_request({"tools": tools or None})
        return self._parser(self._tokenizer, request.tools).extract_tool_calls(text, request)

    def _start_word(self) -> str:
        return getattr(self._parser, "tool_call_start_token", "<tool_call>")


def read_message(message: Message, tools: list[dict[str, Any]]) -> ParsedReply:
    """The calls of a message whose endpoint has parsed them (OpenAI's `tool_calls`), checked in the same way."""
    functions = [call.get("function") or {} for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    calls = [_checked(function.get("name"), function.get("arguments"), _schemas(tools)) for function in functions]
    return ParsedReply(content=(message.get("content") or "").strip(), calls=calls)


def _schemas(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}


def _split_thinking(text: str, *, starts_thinking: bool) -> tuple[str, str]:
    """The thinking with which a reply begins and the rest; if the thinking does not end, there is no rest."""
    thoughts: list[str] = []
    while starts_thinking or text.lstrip().startswith(OPEN):
        thinking, _, text = text.partition(CLOSE)
        thoughts.append(thinking.replace(OPEN, "", 1).strip())
        starts_thinking = False
    return "\n".join(thoughts), text


def _checked(name: Any, words: Any, schemas: dict[str, dict[str, Any]]) -> ToolCall:
    """The call with its arguments as a dictionary, and its problem in `error`."""
    if not isinstance(name, str) or name not in schemas:
        return ToolCall(name=str(name), error=f"there is no tool {name}; there are: {', '.join(schemas)}")
    try:
        arguments = json.loads(words) if isinstance(words, str) else words
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments  # a text that holds the object
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(name=name, error="the arguments are not a JSON object")
    schema = schemas[name]
    known, missing = schema.get("properties", {}), [word for word in schema.get("required", []) if word not in arguments]
    if missing:
        return ToolCall(name=name, arguments=arguments, error=f"missing arguments: {', '.join(missing)}")
    if unknown := sorted(set(arguments) - set(known)):
        return ToolCall(name=name, arguments=arguments, error=f"unknown arguments: {', '.join(unknown)}")
    return ToolCall(name=name, arguments=arguments)
