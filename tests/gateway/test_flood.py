"""A client that floods its session holds up itself: its requests wait unread, those beyond are refused, and others are served."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from tests.gateway.scripted import Asked, user
from vime.chat.reply_reader import ReplyReader
from vime.gateway import gateway as module

AT_ONCE, OPEN, SENT = 4, 12, 30
AGENTS = 500


async def test_a_flood_is_bounded_and_others_are_served(
    opened: Callable[..., Asked], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
):
    read, num_read = module._body, 0

    async def counting(http: web.Request) -> bytes:
        nonlocal num_read
        num_read += 1
        return await read(http)

    monkeypatch.setattr(module, "_body", counting)
    monkeypatch.setattr(module, "MOST_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(module, "MOST_OPEN", OPEN)
    flooded = opened(*["Done.<|im_end|>"] * OPEN, other_reader=ReplyReader(tokenizer))
    other = opened("Hello.<|im_end|>", other_reader=ReplyReader(tokenizer))
    flooded.model.go.clear()
    url = f"{flooded.session.openai_url}/chat/completions"

    async def ask(http: aiohttp.ClientSession) -> int:
        async with http.post(url, json={"messages": [user("?")]}) as response:
            await response.read()
            return response.status

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        flood = [asyncio.create_task(ask(http)) for _ in range(SENT)]
        while sum(each.done() for each in flood) < SENT - OPEN or len(flooded.model.prompts) < AT_ONCE:
            await asyncio.sleep(0.01)
        assert num_read == flooded.session.counts["calls"] == len(flooded.model.prompts) == AT_ONCE
        assert (await other.ask(user("?"))).choices[0].message.content == "Hello."
        assert sum(each.done() for each in flood) == SENT - OPEN
        flooded.model.go.set()
        assert sorted(await asyncio.gather(*flood)) == [200] * OPEN + [429] * (SENT - OPEN)
    assert flooded.session.counts["calls"] == OPEN
    flooded.audit()


async def test_agents_that_begin_at_once_are_connected_while_the_event_loop_is_busy(opened: Callable[..., Asked], tokenizer: Any):
    url = urlsplit(opened(other_reader=ReplyReader(tokenizer)).session.url)
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    with ExitStack() as connections:
        for _ in range(min(AGENTS, most)):  # nothing is awaited, so none of them is taken meanwhile
            connections.enter_context(socket.create_connection((url.hostname, url.port or 0), timeout=20))
