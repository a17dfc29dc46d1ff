"""Replies over HTTP: what a model wrote is answered, whole and streamed alike; turns are closed as the template closes them."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.gateway.scripted import Asked, Scripted, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

SCHEMAS: dict[str, Any] = {name: {"type": "object", "properties": {}} for name in ("search", "now")}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {"type": "function", "function": {"name": name, "parameters": given}} for name, given in SCHEMAS.items()
    ],
    "responses": [{"type": "function", "name": name, "parameters": given} for name, given in SCHEMAS.items()],
    "messages": [{"name": name, "input_schema": given} for name, given in SCHEMAS.items()],
}
ROUTES = tuple(TOOLS)
END = "<|im_end|>"


def call(text: str) -> str:
    return f"</think><tool_call>\n{text}\n</tool_call>{END}"


async def post(asked: Asked, route: str, messages: list[Any], *, stream: bool = False, **more: Any) -> Any:
    """The body of an answer, or the events of a stream."""
    body = {"model": "any", "stream": stream, "tools": TOOLS[route], "input" if route == "responses" else "messages": messages}
    body |= {"max_tokens": 1000} if route == "messages" else {}
    async with aiohttp.ClientSession() as http, http.post(f"{asked.session.url}/v1/{route}", json=body | more) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if stream else json.loads(text)


async def shown(asked: Asked, route: str, *, stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls of a reply as a client of this protocol reads them."""
    found = await post(asked, route, [user("?")], stream=stream)
    assert asked.session.failure is None
    text, calls = "", []
    if route == "responses":
        for item in (found[-1]["response"] if stream else found)["output"]:
            text += "".join(part["text"] for part in item["content"]) if item["type"] == "message" else ""
            calls += [(item["name"], json.loads(item["arguments"]))] if item["type"] == "function_call" else []
    elif route == "messages" and not stream:
        for block in found["content"]:
            text += block.get("text", "")
            calls += [(block["name"], block["input"])] if block["type"] == "tool_use" else []
    elif route == "messages":
        names, written = [event["content_block"].get("name") for event in found if event["type"] == "content_block_start"], {}
        for event in found:
            if event["type"] == "content_block_delta":
                text += event["delta"].get("text", "")
                written[event["index"]] = written.get(event["index"], "") + event["delta"].get("partial_json", "")
        calls = [(name, json.loads(written.get(place) or "{}")) for place, name in enumerate(names) if name]
    else:
        key = "delta" if stream else "message"
        pieces = [choice[key] for chunk in (found if stream else [found]) for choice in chunk["choices"]]
        text = "".join(piece.get("content") or "" for piece in pieces)
        given: list[list[str]] = []
        for piece in (one for each in pieces for one in each.get("tool_calls", ())):
            given += [[piece["function"]["name"], ""]] if piece["function"].get("name") else []
            given[-1][1] += piece["function"]["arguments"]
        calls = [(name, json.loads(arguments)) for name, arguments in given]
    return text, calls


READ = {
    "half a surrogate pair": (
        '{"name": "search", "arguments": {"query": "caf\\u00e9 \\ud83d"}}',
        ("search", {"query": "café \ufffd"}),
    ),
    "the other half": ('{"name": "search", "arguments": {"query": "\\ude00!"}}', ("search", {"query": "\ufffd!"})),
    "halves in a key": ('{"name": "search", "arguments": {"\\ud83d": 1}}', ("search", {"\ufffd": 1})),
    "a whole pair": ('{"name": "search", "arguments": {"query": "\\ud83d\\ude00"}}', ("search", {"query": "😀"})),
    "arguments before the name": ('{"arguments": {"name": "now"}, "name": "search"}', ("search", {"name": "now"})),
    "no arguments": ('{"name": "now"}', ("now", {})),
    "null": ('{"name": "now", "arguments": null}', ("now", {})),
    "empty arguments": ('{"name": "now", "arguments": ""}', ("now", {})),
    "written twice": ('{"name": "search", "arguments": "{\\"query\\": \\"ada\\"}"}', ("search", {"query": "ada"})),
    "a tag in a string": ('{"name": "search", "arguments": {"query": "</tool_call>"}}', ("search", {"query": "</tool_call>"})),
    "an opening in a string": ('{"name": "search", "arguments": {"q": "a <tool_call> b"}}', ("search", {"q": "a <tool_call> b"})),
    "an end of thinking in a string": ('{"name": "search", "arguments": {"q": "</think>"}}', ("search", {"q": "</think>"})),
    "a large number": ('{"name": "search", "arguments": {"q": 1180591620717411303424}}', ("search", {"q": 2**70})),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_calls_that_can_be_read_are_read_as_they_were_meant(opened: Callable[..., Asked], route: str, stream: bool):
    for what, (written, expected) in READ.items():
        assert await shown(opened(call(written)), route, stream=stream) == ("", [expected]), what


NOT_READ = {
    "single quotes": "{'name': 'search', 'arguments': {'query': 'a'}}",
    "an empty call": "",
    "a trailing comma": '{"name": "search", "arguments": {"query": "a",}}',
    "a line break in a string": '{"name": "search", "arguments": {"query": "a\nb"}}',
    "another key": '{"name": "search", "parameters": {"query": "a"}}',
    "two calls in one": '{"name": "search", "arguments": {"query": "a"}}\n{"name": "now", "arguments": {}}',
    "no name": '{"name": "", "arguments": {"query": "a"}}',
    "a name that is a number": '{"name": 5, "arguments": {"query": "a"}}',
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_what_cannot_be_read_as_a_call_is_text(opened: Callable[..., Asked], route: str, stream: bool):
    for what, written in NOT_READ.items():
        text, calls = await shown(opened(call(written)), route, stream=stream)
        assert not calls and text == call(written).removeprefix("</think>").removesuffix(END), what


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_object_stay_visible(opened: Callable[..., Asked], stream: bool):
    for arguments in ('["ada"]', '"ada"', '{"query": "ada", "limit": NaN}', '{"a":' * 300 + '"ada"' + "}" * 300):
        reply = call(f'{{"name": "search", "arguments": {arguments}}}')
        text, calls = await shown(opened(reply), "messages", stream=stream)
        assert "ada" in text and not calls
        text, calls = await shown(opened(reply), "chat/completions", stream=stream)
        assert "ada" in str(calls) and not text


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_reasoning_and_text_are_the_same_however_tokens_arrive(opened: Callable[..., Asked], size: int):
    replies = (
        "<think>2 < 3</thi</think> a <tool_ca b",
        "a<tool_call>b</think>c",
        "<think>a",
        "</think>  ",
        "<thi",
        "</think>a</think>",
    )
    for written in replies:
        whole = opened(written + END)
        streamed = opened(written + END)
        streamed.model.size = size
        message = (await post(whole, "chat/completions", [user("?")]))["choices"][0]["message"]
        deltas = [event["choices"][0]["delta"] for event in await post(streamed, "chat/completions", [user("?")], stream=True)]
        for key in ("content", "reasoning_content"):
            assert "".join(delta.get(key) or "" for delta in deltas) == (message.get(key) or ""), (written, key)


async def test_text_and_reasoning_are_said_while_they_arrive_and_calls_once_they_are_whole(opened: Callable[..., Asked]):
    asked = opened("<think>one two three four</think>five six seven" + call('{"name": "now"}').removeprefix("</think>"))
    asked.model.size = 1
    events = await post(asked, "chat/completions", [user("?")], stream=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert sum("reasoning_content" in delta for delta in deltas) > 1 and sum(bool(delta.get("content")) for delta in deltas) > 1
    assert sum("tool_calls" in delta for delta in deltas) == 1


@pytest.mark.parametrize("end", [END, "<|endoftext|>", "<|vision_end|>", ""])
async def test_a_turn_is_closed_by_the_templates_own_end_whatever_ended_the_reply(opened: Callable[..., Asked], end: str):
    asked = opened("</think>hello" + end, "</think>ok" + END)
    await post(asked, "chat/completions", [user("1?")])
    await post(asked, "chat/completions", [user("1?"), {"role": "assistant", "content": "hello"}, user("2?")])
    behind = asked.model.tokenizer.decode(asked.model.prompts[1]).partition("</think>hello")[2]
    assert behind == f"{end.removesuffix(END)}{END}\n<|im_start|>user\n2?{END}\n<|im_start|>assistant\n"
    asked.audit()


TURN = f"I found 42.{END}\n<|im_start|>assistant\n"


async def test_a_finished_message_at_the_end_opens_a_new_turn_where_the_protocol_knows_no_prefill(opened: Callable[..., Asked]):
    said = {"role": "assistant", "content": "I found 42."}
    for route, more in (("chat/completions", {}), ("responses", {}), ("chat/completions", {"continue_final_message": False})):
        asked = opened("</think>x" + END)
        await post(asked, route, [user("?"), said | ({"name": "researcher"} if route != "responses" else {})], **more)
        assert asked.model.tokenizer.decode(asked.model.prompts[0]).endswith(TURN)
    for route, more in (("messages", {}), ("chat/completions", {"continue_final_message": True})):
        asked = opened("</think>x" + END)
        await post(asked, route, [user("?"), said], **more)
        assert asked.model.tokenizer.decode(asked.model.prompts[0]).endswith("I found 42.")


async def test_an_own_reply_at_the_end_goes_on_only_if_it_was_cut(opened: Callable[..., Asked]):
    asked = opened("</think>I found 42." + END, "</think>x" + END)
    await post(asked, "chat/completions", [user("?")])
    await post(asked, "chat/completions", [user("?"), {"role": "assistant", "content": "I found 42."}])
    assert asked.model.tokenizer.decode(asked.model.prompts[1]).endswith(TURN)
    asked.audit()
    asked = opened("</think>I found 42.", " Yes." + END)
    reply = (await post(asked, "chat/completions", [user("?")], max_tokens=3))["choices"][0]["message"]["content"]
    await post(asked, "chat/completions", [user("?"), {"role": "assistant", "content": reply}])
    assert asked.model.tokenizer.decode(asked.model.prompts[1]).endswith(f"</think>{reply}")
    assert len(asked.audit()) == 1


async def test_a_pending_call_at_the_end_is_shown(opened: Callable[..., Asked]):
    function = {"name": "search", "arguments": '{"query": "ada"}'}
    pending = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    use = {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "ada"}}
    item = {"type": "function_call", "call_id": "c1", **function}
    for route, last in (
        ("chat/completions", pending),
        ("messages", {"role": "assistant", "content": [use]}),
        ("responses", item),
    ):
        asked = opened("</think>x" + END)
        await post(asked, route, [user("?"), last])
        prompt = asked.model.tokenizer.decode(asked.model.prompts[0])
        assert '"query": "ada"' in prompt and prompt.endswith(f"{END}\n<|im_start|>assistant\n")


async def test_empty_arguments_in_a_history_are_an_empty_object(opened: Callable[..., Asked]):
    for arguments in ("", None, "  ", "null", "{}"):
        calls = [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}]
        asked = opened("</think>x" + END)
        before = [user("?"), {"role": "assistant", "content": None, "tool_calls": calls}]
        await post(asked, "chat/completions", [*before, {"role": "tool", "tool_call_id": "c1", "content": "12:00"}])
        assert '{"name": "now", "arguments": {}}\n' in asked.model.tokenizer.decode(asked.model.prompts[0])


async def test_white_space_around_reasoning_is_no_edit(opened: Callable[..., Asked]):
    written = "<think>\nLook first.\n</think>\n\n" + call('{"name": "now"}').removeprefix("</think>")
    for thought in ("\nLook first.\n", "Look first.", "  Look first.", "\r\n\nLook first.\t"):
        asked = opened(written, "</think>x" + END)
        reply = (await post(asked, "chat/completions", [user("?")]))["choices"][0]["message"] | {"reasoning_content": thought}
        result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "12:00"}
        await post(asked, "chat/completions", [user("?"), reply, result])
        assert len(asked.audit()) == 1 and not any(name.startswith("fork_") for name in asked.session.statistics())
    asked = opened(written, "</think>x" + END)
    reply = (await post(asked, "chat/completions", [user("?")]))["choices"][0]["message"] | {"reasoning_content": "Look last."}
    await post(asked, "chat/completions", [user("?"), reply, user("!")])
    assert len(asked.audit()) == 2


async def test_halves_of_surrogate_pairs_in_a_request_are_replaced(opened: Callable[..., Asked]):
    """Halves as written by programs that cut texts by UTF-16 units."""
    for text, expected in (
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 cut", "\ufffd cut"),
        ("\ud83d\ude00", "😀"),
        ("\\ud83d", "\\ud83d"),
    ):
        for route in ROUTES:
            asked = opened("</think>x" + END)
            await post(asked, route, [user(text)])
            assert f"user\n{expected}{END}" in asked.model.tokenizer.decode(asked.model.prompts[0])


class Templated(Scripted):
    """A model whose chat template cannot render a message that says "odd"."""

    def __init__(self, tokenizer: Any, fails: str) -> None:
        super().__init__(tokenizer, ["x" + END])
        text = "{{ messages[-1].content }}"
        self.template = {"chat_template": f"{{% if messages[-1].content == 'odd' %}}{fails}{{% endif %}}{text}"}


@pytest.mark.parametrize(
    "fails", ["raise_exception('no')", "1 + messages[0].content", "messages[9].content.x", "messages[0].content | items | list"]
)
async def test_what_a_chat_template_cannot_render_is_refused(opened: Callable[..., Asked], fails: str):
    asked = opened(model=lambda tokenizer: Templated(tokenizer, f"{{{{ {fails} }}}}"))
    async with aiohttp.ClientSession() as http:
        for text, status in (("odd", 400), ("even", 200)):
            body = {"model": "any", "messages": [user(text)]}
            async with http.post(f"{asked.session.url}/v1/chat/completions", json=body) as answer:
                assert answer.status == status and ("the chat template" in await answer.text()) == (status == 400)
    assert asked.session.failure is None
