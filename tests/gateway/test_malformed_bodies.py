"""Bodies of any content and shape, over every protocol: a client gets an answer or a reason, and nothing else happens."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.chat.request import Refused
from vime.gateway.anthropic_messages import AnthropicMessages
from vime.gateway.chat_completions import ChatCompletions
from vime.gateway.responses import Responses

KEYS = (
    *("messages", "input", "instructions", "system", "tools", "tool_choice", "n", "stop", "stop_sequences", "max_tokens"),
    *("max_output_tokens", "stream", "stream_options", "response_format", "text", "output_config", "previous_response_id"),
    *("role", "content", "type", "id", "name", "function", "arguments", "tool_calls", "tool_call_id", "tool_use_id", "output"),
    *("summary", "thinking", "call_id", "input_schema", "parameters", "format", "schema", "disable_parallel_tool_use"),
)
WORDS = (
    *("user", "assistant", "system", "tool", "developer", "text", "input_text", "output_text", "image", "function", "custom"),
    *("function_call", "function_call_output", "reasoning", "item_reference", "tool_use", "tool_result", "thinking", "message"),
    *("namespace", "web_search", "auto", "any", "required", "json_schema", '{"a": 1}', "", "search"),
)
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(WORDS)


def nested(values: Any) -> Any:
    return st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(KEYS), values, max_size=5)


anything = st.recursive(scalars, nested, max_leaves=12)
bodies = st.dictionaries(st.sampled_from(KEYS), anything, max_size=6)
messages = st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize("make", [ChatCompletions, Responses, AnthropicMessages])
@settings(max_examples=100, deadline=None)
@given(body=bodies, entries=messages)
def test_whatever_a_body_contains_it_is_parsed_or_refused(make: Callable[[], Any], body: dict[str, Any], entries: Any):
    dialect = make()
    for asked in (body, body | {"messages": entries, "input": entries}, body | {"messages": [{"role": "user"}], "input": "?"}):
        try:
            request = dialect.parse(asked)
        except Refused as refused:
            assert refused.message and 400 <= refused.status < 500
        else:
            assert all(isinstance(message["content"], str) for message in request.messages)
            assert request.messages and all(isinstance(word, str) for word in request.stop)
