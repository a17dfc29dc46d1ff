"""Clients that end their connections without a word, as agents do that are killed at the end of their time."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.gateway.scripted import Asked, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""


@pytest.mark.parametrize("num_pieces", [0, 1])
async def test_a_client_that_goes_in_the_middle_of_a_stream_leaves_no_traceback_in_the_log(
    opened: Callable[..., Asked], caplog: pytest.LogCaptureFixture, num_pieces: int
):
    asked = opened("</think>one two three four five six seven<|im_end|>")
    if not num_pieces:
        asked.model.go.clear()
    asking = json.dumps({"messages": [user("1?")], "stream": True}).encode()
    url = asked.session.openai_url.removeprefix("http://")
    host, path = url.split("/", 1)
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(asking)}\r\n\r\n".encode())
    writer.write(asking)
    if num_pieces:
        assert (await reader.read(12)) == b"HTTP/1.1 200"
    else:
        await asyncio.sleep(0.1)
    writer.transport.abort()
    asked.model.go.set()
    await asyncio.sleep(0.2)
    assert len(asked.model.turns) == 1 and not caplog.records
