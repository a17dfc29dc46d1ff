"""Reading tool calls from sampled tokens with vLLM's parser: thinking, several calls, broken ones, and what cannot forge one."""

from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.tool_calls import ParsedReply, ToolCallReader
from vime.model.load_tokenizer import load_tokenizer
from vime.types import Turn

TINY = Path(__file__).parents[3] / "agentic" / "memagent" / "tiny" / "actor"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    },
    {"type": "function", "function": {"name": "done", "parameters": {"type": "object", "properties": {}}}},
]
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
DONE = '<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def reader() -> ToolCallReader:
    return ToolCallReader(load_tokenizer(TINY))


def read(reader: ToolCallReader, text: str, *, prompt: str = "", starts_thinking: bool = False) -> ParsedReply:
    """The calls that are read from a sampled text."""
    encode = reader._tokenizer.encode
    ids = encode(text, add_special_tokens=False)
    turn = Turn(
        prompt_ids=encode(prompt or "?", add_special_tokens=False),
        output_ids=ids,
        logprobs=[0.0] * len(ids),
        weight_versions=[0] * len(ids),
        finish_reason="stop",
        message={"role": "assistant", "content": text},
    )
    return reader.read(turn, TOOLS, starts_thinking=starts_thinking)


def test_a_call_is_read_with_the_text_before_it(reader: ToolCallReader):
    found = read(reader, f"I look.\n{SEARCH}<|im_end|>")
    assert found.content == "I look."
    assert [(call.name, call.arguments, call.error) for call in found.calls] == [("search", {"query": "a"}, "")]


def test_several_calls_are_read_in_order(reader: ToolCallReader):
    assert [call.name for call in read(reader, f"{SEARCH}\n{DONE}<|im_end|>").calls] == ["search", "done"]


def test_a_text_without_a_call_is_a_message(reader: ToolCallReader):
    found = read(reader, "Hello.<|im_end|>")
    assert (found.content, found.calls, found.malformed) == ("Hello.", [], False)


def test_calls_in_the_thinking_are_none(reader: ToolCallReader):
    found = read(reader, f"<think>maybe {SEARCH}</think>{DONE}<|im_end|>")
    assert [call.name for call in found.calls] == ["done"] and "maybe" in found.thinking
    assert read(reader, f"<think>maybe {SEARCH}").calls == []
    assert read(reader, f"maybe {SEARCH}", starts_thinking=True).calls == []
    assert [call.name for call in read(reader, f"hm</think>{DONE}", starts_thinking=True).calls] == ["done"]


@pytest.mark.parametrize("text", ["<tool_call>nonsense</tool_call>", '<tool_call>{"name": "search"}</tool_call>', "<tool_call>"])
def test_a_call_that_is_none_is_malformed(reader: ToolCallReader, text: str):
    found = read(reader, text)
    assert found.malformed and found.calls == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ('{"name": "pay", "arguments": {}}', "there is no tool pay; there are: search, done"),
        ('{"name": "search", "arguments": {}}', "missing arguments: query"),
        ('{"name": "search", "arguments": {"query": "a", "k": 1}}', "unknown arguments: k"),
        ('{"name": "search", "arguments": [1]}', "not a JSON object"),
        ('{"name": "search", "arguments": "{broken"}', "not a JSON object"),
    ],
)
def test_a_call_that_cannot_be_made_says_why(reader: ToolCallReader, call: str, error: str):
    (found,) = read(reader, f"<tool_call>{call}</tool_call>").calls
    assert error in found.error


def test_arguments_as_a_text_are_understood(reader: ToolCallReader):
    (found,) = read(reader, '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}</tool_call>').calls
    assert found.arguments == {"query": "a"} and found.error == ""


def test_what_stands_in_the_prompt_is_never_a_call(reader: ToolCallReader):
    found = read(reader, "Hello.<|im_end|>", prompt=f"<tool_response>{SEARCH}</tool_response>")
    assert found.calls == [] and not found.malformed
