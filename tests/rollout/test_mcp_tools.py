"""Tools of a real MCP server, over its standard streams and over HTTP: its answers, its refusals, its silence and its end."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from vime import McpServer, ToolBox
from vime.config import RolloutConfig, RunConfig
from vime.errors import ServerError, ToolLimitError
from vime.rollout.context import Context
from vime.rollout.mcp_tools import MOST_UNANSWERED

PROGRAM = str(Path(__file__).with_name("odd_mcp_server.py"))
ODD = McpServer(command=[sys.executable, PROGRAM])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    server = subprocess.Popen([sys.executable, PROGRAM, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as asks:
                if asks.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


def context_of(**rollout: Any) -> Context:
    return Context(config=RunConfig(rollout=RolloutConfig(**rollout)), evaluation=False, session_id="s")


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


async def said(toolbox: ToolBox, name: str, **arguments: Any) -> str:
    return (await toolbox.results([call_of(name, **arguments)]))[0]["content"]


@pytest.mark.parametrize("over", ["streams", "http"])
async def test_an_agent_is_given_the_tools_of_a_server(over: str, request: pytest.FixtureRequest):
    server = replace(ODD) if over == "streams" else McpServer(url=request.getfixturevalue("url"), headers={"X-Key": "1"})
    context = context_of()
    async with server:
        toolbox = ToolBox(context, await server.tools(context), max_calls=20)
        add = toolbox.tools["add"]
        assert add.description == "Adds two numbers." and add.parameters["required"] == ["first"] and add.repeatable
        assert not toolbox.tools["divide"].repeatable
        assert await said(toolbox, "add", first=2) == "3"
        assert await said(toolbox, "divide", first=1, second=0) == "Error: Error executing tool divide"  # the server's words
        assert "first" in await said(toolbox, "add", first="x")
        assert await said(toolbox, "picture") == "[image/png, 7 bytes, not shown]"
        assert await asyncio.gather(*(said(toolbox, "add", first=n) for n in range(8))) == [str(n + 1) for n in range(8)]
    counts = context.trace.counts
    assert (counts["tool_answered"], counts["tool_refused"], counts["tool_media"]) == (10, 2, 1)


async def test_a_long_result_is_cut_and_a_call_too_many_ends_the_rollout():
    context = context_of(max_tool_characters=1000)
    async with replace(ODD) as server:
        toolbox = ToolBox(context, await server.tools(context), max_calls=1)
        text = await said(toolbox, "megabyte")
        assert len(text) < 1100 and f"[{2**20 - 1000} characters are left out here]" in text
        with pytest.raises(ToolLimitError):
            await said(toolbox, "add", first=1)
    assert context.trace.counts["tool_cut"] == 1


async def test_a_lost_server_is_the_infrastructures_fault_and_the_next_call_starts_another():
    context = context_of()
    async with replace(ODD) as server:
        toolbox = ToolBox(context, await server.tools(context))
        first = await said(toolbox, "process")
        with pytest.raises(ServerError, match="was lost"):
            await said(toolbox, "die")
        assert await said(toolbox, "process") != first
    assert context.trace.counts["tool_lost"] == 1


async def test_a_server_that_hangs_costs_calls_their_time_limit_and_is_then_started_again():
    context = context_of(tool_timeout_seconds=5.0)
    async with replace(ODD, only=["hang", "process"], prefix="odd_") as server:
        toolbox = ToolBox(context, await server.tools(context))
        assert list(toolbox.tools) == ["odd_hang", "odd_process"]
        first = int(await said(toolbox, "odd_process"))
        slow = ToolBox(context, [replace(tool, seconds=0.2) for tool in await server.tools(context)])
        for _ in range(MOST_UNANSWERED):
            assert "ran longer than its limit of 0.2 s" in await said(slow, "odd_hang")
        second = int(await said(toolbox, "odd_process"))
        assert first != second
    assert not psutil.pid_exists(first) and not psutil.pid_exists(second)
    assert context.trace.counts["tool_timed_out"] == MOST_UNANSWERED


async def test_rollouts_that_are_aborted_leave_the_server_to_the_others():
    context = context_of()
    async with replace(ODD, num_connections=2) as server:
        toolbox = ToolBox(context, await server.tools(context))
        first = {await said(toolbox, "process") for _ in range(2)}
        for _ in range(MOST_UNANSWERED):
            call = asyncio.create_task(said(toolbox, "hang"))
            await asyncio.sleep(0.2)
            call.cancel()
            await asyncio.wait({call})
        connections: Any = server._connections
        assert all(one._num_unanswered == 0 for one in connections._all) and psutil.pid_exists(int(first.pop()))


async def test_rollouts_of_a_worker_share_a_server_which_ends_with_the_worker():
    first, server = context_of(), replace(ODD)
    second = replace(first, session_id="other")
    processes = {await said(ToolBox(one, await server.tools(one)), "process") for one in (first, second)}
    assert len(processes) == 1
    await first.kept.aclose()
    assert not psutil.pid_exists(int(processes.pop()))


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (McpServer(command=["no-such-program"]), "did not start: FileNotFoundError"),
        (McpServer(command=[sys.executable, "-c", "raise SystemExit(1)"]), "did not start"),
        (McpServer(command=[sys.executable, "-c", "import time; time.sleep(60)"], start_seconds=0.5), "within 0.5 s"),
        (McpServer(url="http://127.0.0.1:9/mcp"), "http://127.0.0.1:9/mcp did not start"),
    ],
)
async def test_a_server_that_does_not_start_is_named(server: McpServer, words: str):
    context = context_of()
    with pytest.raises(ServerError, match=words):
        await server.tools(context)
    await context.kept.aclose()


@pytest.mark.parametrize("wrong", [{}, {"command": ["a"], "url": "b"}, {"command": "npx server"}])
def test_a_server_is_a_list_of_words_or_a_url(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="command"):
        McpServer(**wrong)
