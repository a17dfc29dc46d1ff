"""The gateway over Responses, with OpenAI's own client and Qwen3's tokenizer; the model's replies are scripted."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.gateway.scripted import Asked, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

TOOLS: Any = [{"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}}, "strict": False}]
CALLS = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "search", "arguments": {"query": "früh 😀"}}\n</tool_call><|im_end|>'
)


async def ask(asked: Asked, given: Any, *, stream: bool = False, **options: Any) -> Any:
    """The whole response, as the client puts it together."""
    if not stream:
        return await asked.client.responses.create(model="any", input=given, **options)
    async with asked.client.responses.stream(model="any", input=given, **options) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


def results(response: Any, text: str) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": text} for call in calls]


def echoed(response: Any) -> list[Any]:
    return [item.to_dict() for item in response.output]


@pytest.mark.parametrize("stream", [False, True])
async def test_three_turns_with_tools_are_one_sequence_of_exactly_the_sampled_tokens(opened: Callable[..., Asked], stream: bool):
    asked = opened(CALLS, CALLS, "<think>\n</think>Ada.<|im_end|>")
    items: list[Any] = [{"role": "developer", "content": "You are terse."}, user([{"type": "input_text", "text": "Who?"}])]
    for number in range(3):
        found = await ask(asked, items, tools=TOOLS, stream=stream, store=False)
        calls = [item for item in found.output if item.type == "function_call"]
        assert [json.loads(call.arguments)["query"] for call in calls] == ["Ada", "früh 😀"] * (number < 2)
        items = [*items, *echoed(found), *reversed(results(found, f"found {number}"))]
    assert found.output_text == "Ada." and found.status == "completed"
    assert found.usage.input_tokens == len(asked.model.prompts[2])
    assert asked.model.tokenizer.decode(asked.model.prompts[2]).count(CALLS) == 2
    assert len(asked.audit()) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_continued_by_its_id(opened: Callable[..., Asked], stream: bool):
    asked = opened(CALLS, "</think>Ada.<|im_end|>", "</think>Yes.<|im_end|>", fork=False)
    options: Any = {"instructions": "You are terse.", "tools": TOOLS}
    first = await ask(asked, "Who?", stream=stream, **options)
    second = await ask(asked, results(first, "found"), previous_response_id=first.id, stream=stream, **options)
    assert second.output_text == "Ada."
    text = asked.model.tokenizer.decode(asked.model.prompts[1])
    assert CALLS in text and text.count("You are terse.") == 1
    by_reference = [user("Who?"), *({"type": "item_reference", "id": item.id} for item in first.output), *results(first, "found")]
    await ask(asked, [*by_reference, *echoed(second), user("Sure?")], **options)
    assert asked.model.tokenizer.decode(asked.model.prompts[2]).startswith(text)
    found = await asked.client.responses.retrieve(first.id)
    assert [item.id for item in found.output] == [item.id for item in first.output]
    await asked.client.responses.delete(first.id)
    for call in (asked.client.responses.retrieve(first.id), ask(asked, "?", previous_response_id=first.id)):
        with pytest.raises(NotFoundError, match="there is no response"):
            await call
    asked.audit()


async def test_a_stream_has_all_events_of_each_item(opened: Callable[..., Asked]):
    asked = opened(CALLS)
    kinds: list[str] = []
    async for event in await asked.client.responses.create(model="m", input="Who?", tools=TOOLS, stream=True):
        assert event.sequence_number == len(kinds)
        kinds.append(event.type.removeprefix("response."))
    calls = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    item = ["output_item.added", "content_part.added", "{0}.delta", "{0}.done", "content_part.done", "output_item.done"]
    expected = ["created", "in_progress"]
    for kind in ("reasoning_text", "output_text"):
        expected += [part.format(kind) for part in item]
    unique = [kind for place, kind in enumerate(kinds) if place == 0 or kind != kinds[place - 1]]
    assert unique == [*expected, *calls, *calls, "completed"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_takes_text_and_a_namespace_is_named(opened: Callable[..., Asked], stream: bool):
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    replies = [call.format("patch", '{"input": "*** Begin\\n"}'), call.format("spawn", "{}")]
    asked = opened(f"</think>{''.join(replies)}<|im_end|>", "</think>done<|im_end|>")
    inner = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}
    tools: Any = [
        {"type": "custom", "name": "patch", "description": "Applies a patch."},
        {"type": "namespace", "name": "agents", "description": "Others.", "tools": [inner]},
        {"type": "web_search"},
    ]
    found = await ask(asked, "Go.", tools=tools, stream=stream)
    patch, spawn = found.output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin\n")
    assert (spawn.type, spawn.name, spawn.namespace) == ("function_call", "spawn", "agents")
    (note,) = asked.session.notes
    assert "the tool web_search is not offered to the model" in note
    outputs = [
        {"type": "function_call_output", "call_id": spawn.call_id, "output": [{"type": "input_text", "text": "spawned"}]},
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
    ]
    await ask(asked, [user("Go."), *echoed(found), *outputs], tools=tools, stream=stream)
    text = asked.model.tokenizer.decode(asked.model.prompts[1])
    assert text.index("patched") < text.index("spawned")
    assert len(asked.audit()) == 1


async def test_an_answer_that_was_cut_is_incomplete(opened: Callable[..., Asked]):
    asked = opened(*["</think>one two three four<|im_end|>"] * 2)
    found: list[Any] = [await ask(asked, "1?", max_output_tokens=3)]
    async for event in await asked.client.responses.create(model="m", input="1?", max_output_tokens=3, stream=True):
        found += [event.response] if event.type == "response.incomplete" else []
    for response in found:
        assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
        assert response.output_text == "one two"
    assert len(found) == 2


async def test_input_tokens_are_counted(opened: Callable[..., Asked]):
    asked = opened("</think>one<|im_end|>")
    count = await asked.client.responses.input_tokens.count(model="m", input="Who is Ada?", tools=TOOLS)
    await ask(asked, "Who is Ada?", tools=TOOLS)
    assert count.input_tokens == len(asked.model.prompts[0])


async def test_what_cannot_be_honoured_is_refused(opened: Callable[..., Asked]):
    asked = opened(refuses=True)
    image = user([{"type": "input_image", "image_url": "data:", "detail": "auto"}])
    schema = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ([image], {}, "parts of type 'input_image' are not supported"),
        ("?", {"tools": TOOLS, "tool_choice": "required"}, "tool_choice: this model is being trained"),
        ("?", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "find"}}, "'find' is not among the tools"),
        ("?", {"text": schema}, "response_format: this model is being trained"),
        ("?", {"background": True}, "background: answers are given at once"),
        ([], {}, "input must contain at least one message"),
        ([{"type": "computer_call_output", "call_id": "1", "output": {}}], {}, "items of type 'computer_call_output'"),
    ]
    for given, options, words in refused:
        with pytest.raises(BadRequestError) as raised:
            await ask(asked, given, **options)
        assert words in raised.value.message
    assert asked.model.prompts == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("summary", ["Ada owns it.", "früh 😀\n\nAda", '{"type": "compaction"}', "A </think> in it", ""])
async def test_a_history_is_made_short_on_request(opened: Callable[..., Asked], stream: bool, summary: str):
    asked = opened("</think>Ada.<|im_end|>", f"<think>\nHm.\n</think>\n\n{summary}<|im_end|>", "</think>Yes.<|im_end|>")
    items: list[Any] = [user("Who owns the mill?")]
    items += echoed(await ask(asked, items, stream=stream, store=False))
    short = await ask(asked, [*items, {"type": "compaction_trigger"}], stream=stream, store=False)
    [item] = short.output
    assert item.type == "compaction" and short.status == "completed"
    last = await ask(asked, [item.to_dict(), user("Sure?")], stream=stream, store=False)
    prompt = asked.model.tokenizer.decode(asked.model.prompts[2])
    assert last.output_text == "Yes." and summary in prompt and "the mill" not in prompt
    asked.audit()


@pytest.mark.parametrize("content", ["gAAAAABo", "////", "no base64", "é"])
async def test_a_compaction_of_others_is_refused(opened: Callable[..., Asked], content: str):
    asked = opened("</think>Ada.<|im_end|>")
    with pytest.raises(BadRequestError, match="not made here"):
        await ask(asked, [{"type": "compaction", "encrypted_content": content}, user("Who?")])
