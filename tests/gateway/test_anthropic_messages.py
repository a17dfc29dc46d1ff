"""The gateway over Messages, with Anthropic's own client and Qwen3's tokenizer; the model's replies are scripted."""

from collections.abc import Callable
from typing import Any

import pytest
from anthropic import BadRequestError

from tests.gateway.scripted import Asked, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

TOOLS: Any = [{"name": "search", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}]
CALLS = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "search", "arguments": {"query": "früh 😀"}}\n</tool_call><|im_end|>'
)


async def ask(asked: Asked, *messages: Any, stream: bool, **options: Any) -> Any:
    """The whole message, as the client puts it together."""
    options = {"model": "any", "max_tokens": 500, "messages": list(messages)} | options
    if not stream:
        return await asked.anthropic.messages.create(**options)
    async with asked.anthropic.messages.stream(**options) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_three_turns_with_tools_are_one_sequence_of_exactly_the_sampled_tokens(opened: Callable[..., Asked], stream: bool):
    asked = opened(CALLS, CALLS, "<think>\n</think>Ada.<|im_end|>", fork=False)
    messages: list[Any] = [user([{"type": "text", "text": "Who?", "cache_control": {"type": "ephemeral"}}])]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc=1"}, {"type": "text", "text": "You are terse."}]
    for number in range(3):
        system[0]["text"] = f"x-anthropic-billing-header: cc={number}"
        found = await ask(asked, *messages, system=system, tools=TOOLS, stream=stream)
        calls = [block for block in found.content if block.type == "tool_use"]
        assert [call.input["query"] for call in calls] == ["Ada", "früh 😀"] * (number < 2)
        assert found.stop_reason == ("tool_use" if number < 2 else "end_turn")
        results: list[Any] = [{"type": "tool_result", "tool_use_id": call.id, "content": f"found {number}"} for call in calls]
        content = [{"type": "text", "text": "Go on."}, *reversed(results)]
        messages = [*messages, {"role": "assistant", "content": found.content}, user(content)]
    assert found.content[-1].text == "Ada."
    text = asked.model.tokenizer.decode(asked.model.prompts[2])
    assert text.count(CALLS) == 2 and "cc=" not in text
    assert len(asked.audit()) == 1


async def test_what_claude_code_makes_of_the_arguments_of_a_call_does_not_begin_another_sequence(opened: Callable[..., Asked]):
    """Edits as version 2.1.197 sends them back: with a default value, in another order, without white space at line ends."""
    sampled = '{"file_path": "/x", "old_string": "a", "new_string": "b  \\n  "}'
    call = f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "Edit", "arguments": {sampled}}}\n</tool_call><|im_end|>'
    asked = opened(call, "<think>\n</think>Done.<|im_end|>")
    tools: Any = [{"name": "Edit", "input_schema": {"type": "object", "properties": {}}}]
    found = await ask(asked, user("Edit it."), tools=tools, stream=True)
    (used,) = (block for block in found.content if block.type == "tool_use")
    normal = {"replace_all": False, "file_path": "/x", "old_string": "a", "new_string": "b\n"}
    content = [{**block.to_dict(), **({"input": normal} if block is used else {})} for block in found.content]
    results = [{"type": "tool_result", "tool_use_id": used.id, "content": "edited"}]
    await ask(asked, user("Edit it."), {"role": "assistant", "content": content}, user(results), tools=tools, stream=True)
    assert call in asked.model.tokenizer.decode(asked.model.prompts[1])
    assert len(asked.audit()) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_text_and_usage_are_shown_as_blocks(opened: Callable[..., Asked], stream: bool):
    asked = opened(CALLS, "</think>two<|im_end|>")
    found = await ask(asked, user("Who?"), tools=TOOLS, stream=stream)
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert found.content[0].thinking == "\nHm.\n" and found.content[1].text.strip() == "Let me see."
    assert found.usage.input_tokens == len(asked.model.prompts[0])
    assert found.usage.output_tokens == len(asked.model.turns[0].output_ids)
    answered = {"role": "assistant", "content": found.content}
    again = await ask(asked, user("Who?"), answered, user("And?"), tools=TOOLS, stream=stream)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == len(asked.model.prompts[1])


async def test_a_stream_says_its_prompt_first_and_its_reason_last(opened: Callable[..., Asked]):
    asked = opened("</think>one two three four five<|im_end|>")
    options: Any = {"model": "m", "max_tokens": 4, "messages": [user("1?")], "stream": True}
    kinds: list[str] = []
    async for event in await asked.anthropic.messages.create(**options):
        kinds.append(event.type)
        if event.type == "message_start":
            assert event.message.usage.input_tokens == len(asked.model.prompts[0])
        if event.type == "message_delta":
            assert event.delta.stop_reason == "max_tokens" and event.usage.output_tokens == 4
    assert [kind for place, kind in enumerate(kinds) if place == 0 or kind != kinds[place - 1]] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop")
    ]


@pytest.mark.parametrize("thought", ["<think>\nHm.\n</think>\n\n", "<think>\n\n</think>\n\n", "</think>"])
async def test_a_stream_has_none_of_the_defects_that_other_gateways_shipped(opened: Callable[..., Asked], thought: str):
    """The first text after thinking was lost (litellm 30765), a second message began, with thinking inside a block of text
    (litellm 32357), and sub-agents of Claude Code broke for want of input tokens (claude-code 34899)."""
    asked = opened(CALLS.replace("<think>\nHm.\n</think>\n\n", thought))
    options: Any = {"model": "m", "max_tokens": 500, "messages": [user("Who?")], "tools": TOOLS, "stream": True}
    texts: dict[str, str] = {}
    starts: list[Any] = []
    opened_block: Any = None
    async for event in await asked.anthropic.messages.create(**options):
        if event.type == "message_start":
            starts.append(event.message.usage.input_tokens)
        elif event.type == "content_block_start":
            assert opened_block is None
            opened_block = event
        elif event.type == "content_block_delta":
            kind = opened_block.content_block.type
            assert event.index == opened_block.index
            kinds = {"thinking": "thinking_delta signature_delta", "text": "text_delta", "tool_use": "input_json_delta"}
            assert event.delta.type in kinds[kind].split()
            texts[kind] = texts.get(kind, "") + str(getattr(event.delta, kind, ""))
        elif event.type == "content_block_stop":
            assert event.index == opened_block.index
            opened_block = None
        elif event.type == "message_delta":
            assert event.usage.input_tokens == starts[0] and event.usage.output_tokens == len(asked.model.turns[0].output_ids)
    assert starts == [len(asked.model.prompts[0])] and opened_block is None
    assert texts["text"].strip() == "Let me see." and texts.get("thinking", "").strip() == ("Hm." if "Hm" in thought else "")


async def test_a_stop_sequence_is_named(opened: Callable[..., Asked]):
    asked = opened(*["</think>one END two<|im_end|>"] * 2)
    for stream in (False, True):
        found = await ask(asked, user("1?"), stop_sequences=["never", "END"], stream=stream)
        assert found.content[0].text == "one " and (found.stop_reason, found.stop_sequence) == ("stop_sequence", "END")


async def test_count_tokens_counts_the_prompt_and_leaves_no_trace(opened: Callable[..., Asked]):
    asked = opened("</think>one<|im_end|>")
    options: Any = {"model": "m", "messages": [user("Who is Ada?")], "tools": TOOLS, "system": "You are terse."}
    count = await asked.anthropic.messages.count_tokens(**options)
    await ask(asked, *options.pop("messages"), stream=False, **options)
    assert count.input_tokens == len(asked.model.prompts[0])
    (sample,) = asked.audit()
    assert sample.metadata["kind"] == "main"


async def test_system_messages_may_stand_in_the_middle(opened: Callable[..., Asked]):
    asked = opened("</think>one<|im_end|>")
    await ask(asked, user("1?"), {"role": "system", "content": "Be brief."}, stream=False)
    assert "<|im_start|>system\nBe brief.<|im_end|>" in asked.model.tokenizer.decode(asked.model.prompts[0])


async def test_what_cannot_be_honoured_is_refused_in_the_form_of_the_protocol(opened: Callable[..., Asked]):
    asked = opened("</think>one<|im_end|>", refuses=True)
    image = user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}])
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    for messages, options, words in (
        ([image], {}, "parts of type 'image' are not supported"),
        ([user("?")], {"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice: this model is being trained"),
        ([user("?")], {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "find"}}, "'find' is not among the tools"),
        ([user("?")], {"output_config": schema}, "response_format: this model is being trained"),
        ([user("word " * 3000)], {}, "prompt is too long"),
    ):
        for stream in (False, True):
            with pytest.raises(BadRequestError) as raised:
                await ask(asked, *messages, stream=stream, **options)
            assert raised.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index, call-overload]
            assert words in raised.value.body["error"]["message"]  # type: ignore[index, call-overload]
    hosted = [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]
    await ask(asked, user("1?"), tools=hosted, stream=False)
    assert "web_search" not in asked.model.tokenizer.decode(asked.model.prompts[0])
    assert any("web_search_20250305" in note for note in asked.session.notes)
