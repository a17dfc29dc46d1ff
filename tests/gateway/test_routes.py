"""Routes that are not served, other base URLs, and WebSockets: what is answered has the form of the client's protocol."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.gateway.scripted import Asked, user
from vime.errors import SampleError
from vime.gateway.gateway import DIALECTS
from vime.types import Sample

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

ANTHROPIC = {"anthropic-version": "2023-06-01"}
NOT_SERVED: list[tuple[str, str, dict[str, str], int, str]] = [
    ("POST", "/v1/embeddings", {}, 404, "no embeddings"),
    ("POST", "/embeddings", {}, 404, "no embeddings"),
    ("POST", "/v1/completions", {}, 404, "use chat/completions"),
    ("POST", "/v1/batches", {}, 404, "one by one"),
    ("POST", "/v1/moderations", {}, 404, "no moderation"),
    ("GET", "/v1/responses/resp_1/input_items", {}, 404, "not kept"),
    ("POST", "/v1/responses/resp_1/cancel", {}, 404, "close the connection"),
    ("POST", "/v1/images/generations", {}, 404, "a session answers chat/completions"),
    ("GET", "/v1/chat/completions", {}, 405, "use POST"),
    ("PUT", "/v1/responses", {}, 405, "use POST"),
    ("POST", "/v1/messages/batches", ANTHROPIC, 404, "one by one"),
    ("POST", "/v1/files", ANTHROPIC, 404, "a session answers"),
    ("POST", "/v1/v1/messages", ANTHROPIC, 404, "the base URL of this client is http://127.0.0.1"),
    ("DELETE", "/v1/messages", {}, 405, "use POST"),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "words"), NOT_SERVED)
async def test_what_is_not_served_says_so_in_the_form_of_its_protocol(
    opened: Callable[..., Asked], method: str, path: str, headers: dict[str, str], status: int, words: str
):
    asked = opened()
    found, body = await asked.send(path, {"input": "x"}, method=method, headers=headers)
    assert found == status and words in body["error"]["message"]
    is_anthropic = "messages" in path or bool(headers)
    assert (body.get("type") == "error") == is_anthropic
    assert set(body["error"]) == ({"type", "message"} if is_anthropic else {"message", "type", "param", "code"})
    with pytest.raises(SampleError, match="1 call was refused because: "):
        asked.session.samples(Sample())


async def test_a_base_url_without_its_version_finds_the_same(opened: Callable[..., Asked]):
    asked = opened(*["</think>\n\nOne.<|im_end|>"] * 3)
    client = AsyncOpenAI(base_url=asked.session.url, api_key="x", max_retries=0)
    assert (await client.chat.completions.create(model="m", messages=[user("?")])).choices[0].message.content == "\n\nOne."
    assert (await client.responses.create(model="m", input="?")).output_text == "\n\nOne."
    assert [model.id async for model in client.models.list()] == ["actor"]
    await client.close()
    status, body = await asked.send("/messages", {"messages": [user("?")], "max_tokens": 9})
    assert status == 200 and body["content"][0]["text"].strip() == "One."


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/realtime", "/v1/chat/completions"])
async def test_a_websocket_is_refused_with_the_status_at_which_clients_take_http(opened: Callable[..., Asked], path: str):
    asked = opened()
    host, start = asked.session.url.removeprefix("http://").split("/", 1)
    reader, writer = await asyncio.open_connection(*host.split(":"))
    lines = [f"GET /{start}{path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket"]
    writer.write("\r\n".join([*lines, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x", "", ""]).encode())
    assert b" 426 " in await reader.readline()
    writer.close()


async def test_the_tool_runner_of_anthropics_sdk_goes_on_without_a_thread(opened: Callable[..., Asked]):
    from anthropic import beta_async_tool

    @beta_async_tool
    async def owner_of(thing: str) -> str:
        """The owner of a thing."""
        return f"Ada owns the {thing}"

    call = '<tool_call>\n{"name": "owner_of", "arguments": {"thing": "mill"}}\n</tool_call>'
    asked = opened(f"<think>\nLook.\n</think>\n\n{call}<|im_end|>", "<think>\nSo.\n</think>\n\nAda.<|im_end|>")
    client = AsyncAnthropic(base_url=asked.session.anthropic_url, api_key="x", max_retries=0)
    asking: Any = {"model": "m", "max_tokens": 200, "system": "Be terse.", "messages": [user("Who owns the mill?")]}
    runner = client.beta.messages.tool_runner(**asking, tools=[owner_of])
    last = [message async for message in runner][-1]
    await client.close()
    assert last.content[-1].text.strip() == "Ada."  # type: ignore[union-attr]
    shown = asked.model.tokenizer.decode(asked.model.prompts[-1])
    assert all(words in shown for words in ("Be terse.", "Who owns the mill?", "Ada owns the mill", "owner_of"))
    assert len(asked.audit()) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thought", ["Hm.", "früh 😀", "<tool_call>", "a\n\nb"])
async def test_thinking_is_signed_and_comes_back_as_it_was(opened: Callable[..., Asked], stream: bool, thought: str):
    asked = opened(f"<think>\n{thought}\n</think>\n\nAda.<|im_end|>", "<think>\nSo.\n</think>\n\nBea.<|im_end|>")
    body: Any = {"messages": [user("?")], "max_tokens": 99, "stream": stream}
    _, found = await asked.send("/v1/messages", body)
    if stream:
        deltas = [event["delta"] for event in found if event["type"] == "content_block_delta" and event["index"] == 0]
        assert [delta["type"] for delta in deltas].count("signature_delta") == 1 and deltas[-1]["type"] == "signature_delta"
        text = "".join(delta.get("thinking", "") for delta in deltas)
        block = {"type": "thinking", "thinking": text, "signature": deltas[-1]["signature"]}
    else:
        block = found["content"][0]
    assert block["signature"] and thought in block["thinking"]
    reply = {"role": "assistant", "content": [block, {"type": "text", "text": "Ada."}]}
    await asked.send("/v1/messages", {**body, "messages": [user("?"), reply, user("And?")]})
    assert asked.session.statistics()["fork_edited"] == 0
    asked.audit()


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_defect_of_ours_in_a_stream_that_has_begun_ends_it_with_an_error(
    opened: Callable[..., Asked], route: str, monkeypatch: pytest.MonkeyPatch
):
    asked = opened("</think>one two three four five six<|im_end|>", "</think>one<|im_end|>")
    (dialect,) = (dialect for dialect in DIALECTS if dialect.route == route)
    stream = type(dialect().stream(dialect().parse({"messages": [user("?")], "input": "?", "max_tokens": 9})))
    with monkeypatch.context() as broken:
        broken.setattr(stream, "end", lambda *_: 1 / 0)
        status, events = await asked.send(route, {"messages": [user("?")], "input": "?", "max_tokens": 99, "stream": True})
    assert status == 200 and "ZeroDivisionError" in str(events[-1])
    assert isinstance(asked.session.failure, ZeroDivisionError)
