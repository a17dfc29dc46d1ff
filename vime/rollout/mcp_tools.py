"""Tools of an MCP server (Model Context Protocol) as an agent's own: `McpServer`, a program or a URL.

    EVERYTHING = McpServer(command=["npx", "-y", "@modelcontextprotocol/server-everything"])

    async def generate(context, sample, sampling):
        toolbox = ToolBox(context, await EVERYTHING.tools(context), max_calls=20)
        …

A worker connects with the first rollout that asks, and its rollouts share the connections; a lost one is opened again with the
next call. A server that keeps a state for its agent gets a process for each rollout: `async with replace(EVERYTHING) as own`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import httpx2
import orjson
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult
from mcp_types import Tool as ListedTool

from vime.errors import ServerError, describe
from vime.rollout.context import Context
from vime.rollout.tool import Tool, ToolRefusal
from vime.rollout.within import TIME_LIMIT

__all__ = ["McpServer"]

logger = logging.getLogger(__name__)

MOST_UNANSWERED = 3
"""Calls in a row that reach their time limit before a connection counts as lost."""
HTTP_TIMEOUT = httpx2.Timeout(30.0, read=None)
"""Time limits in seconds; a call has the time limit of its tool."""
LOST = (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, httpx2.TransportError)
"""Errors raised when a connection has been lost."""


@dataclass(kw_only=True, eq=False)
class McpServer:
    """An MCP server whose tools agents are given: a program that speaks over its standard streams, or a URL (streamable HTTP).

    Example: `McpServer(command=["python", "server.py"], only=["search"])`, or `McpServer(url="https://example.org/mcp",
    headers={"Authorization": "Bearer …"})`. Raises ValueError unless one of `command` and `url` is given.
    """

    command: Sequence[str] = ()
    """The program and its arguments. It ends with its worker, and its stderr is in the worker's log."""
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the program. From the worker's environment it gets HOME, PATH and the like, but no keys."""
    folder: str | None = None
    """The folder in which the program starts, by default the worker's."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request to the URL."""
    num_connections: int = 1
    """Processes of the program, or sessions with the URL, in each worker; a call takes the one with the fewest calls."""
    only: Collection[str] | None = None
    """Names of the tools that agents are offered; None offers all."""
    prefix: str = ""
    """Prefix of the tools' names, to distinguish equal names of several servers."""
    seconds: float | None = None
    """Time limit of one call; None for `rollout.tool_timeout_seconds`."""
    start_seconds: float = 60.0
    """Time limit of a connection's start, which may have to download a program."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"an MCP server is a command or a URL: command={list(self.command)}, url={self.url!r}")
        if isinstance(self.command, str):
            raise ValueError(f"command={self.command!r}: give the program and its arguments as a list")
        self._connections: _Connections | None = None

    async def tools(self, context: Context) -> list[Tool]:
        """The tools that the server lists, for a `ToolBox`. One that the server declares as safe to repeat may be repeated.

        Images, sound and other content that is not text are replaced by their names, and counted as `tool_media`. Raises
        ServerError if the server does not start, which ends the rollout as the infrastructure's fault; ValueError for a name in
        `only` that the server does not list.
        """
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            self._connections = _Connections(self)
            context.kept.push_async_callback(self._connections.close)
        with context.clock.stopped():
            listed = await self._connections.listed()
        if missing := set(self.only or ()) - {tool.name for tool in listed}:
            raise ValueError(f"{self.name} has no tool {', '.join(sorted(missing))}: {', '.join(tool.name for tool in listed)}")
        return [self._tool(context, tool) for tool in listed if self.only is None or tool.name in self.only]

    async def __aenter__(self) -> "McpServer":
        """Connections of its own, which end with the block."""
        self._connections = _Connections(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connections."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    @property
    def name(self) -> str:
        """The command or the URL, for messages."""
        return f"the MCP server {self.url or ' '.join(self.command)}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A session with the server."""
        if self.command:
            program, *words = self.command
            started = StdioServerParameters(command=program, args=words, env=dict(self.environment), cwd=self.folder)
            async with Client(started) as client:
                yield client
        else:
            http = httpx2.AsyncClient(headers=dict(self.headers), timeout=HTTP_TIMEOUT)
            async with http, Client(streamable_http_client(self.url, http_client=http)) as client:
                yield client

    def _tool(self, context: Context, listed: ListedTool) -> Tool:
        hints = listed.annotations
        assert self._connections is not None
        return Tool(
            name=self.prefix + listed.name,
            call=partial(_called, context, self._connections, listed.name),
            parameters=listed.input_schema,
            description=listed.description or "",
            seconds=self.seconds,
            repeatable=bool(hints is not None and (hints.read_only_hint or hints.idempotent_hint)),
        )


class _Connections:
    """A worker's connections to one server."""

    def __init__(self, server: McpServer) -> None:
        self.loop = asyncio.get_running_loop()
        self._all = [_Connection(server) for _ in range(server.num_connections)]
        self._listed: list[ListedTool] | None = None
        self._listing = asyncio.Lock()

    async def listed(self) -> list[ListedTool]:
        """All tools; the server is asked for them once."""
        async with self._listing:
            if self._listed is None:
                self._listed = await self._all[0].listed()
        return self._listed

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Calls a tool over the connection with the fewest calls."""
        return await min(self._all, key=lambda connection: connection.num_calls).call(name, arguments)

    async def close(self) -> None:
        """Ends all connections, and with them the programs."""
        await asyncio.gather(*(connection.close() for connection in self._all))


class _Connection:
    """One connection, which is opened with the first request, and again with the next one after it was lost."""

    def __init__(self, server: McpServer) -> None:
        self.num_calls = 0
        self._server = server
        self._num_unanswered = 0
        self._opened: asyncio.Future[Client] | None = None
        self._left = asyncio.Event()
        """Set when the present session is to end."""
        self._holder: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks of all sessions that have not ended yet."""

    async def listed(self) -> list[ListedTool]:
        """All pages of the server's list."""
        client = await self._client()
        found, cursor = list[ListedTool](), None
        try:
            while True:
                page = await asyncio.wait_for(client.list_tools(cursor=cursor), self._server.start_seconds)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
        except (MCPError, TimeoutError, *LOST) as error:
            self._lose()
            raise ServerError(f"{self._server.name} does not list its tools: {describe(error)}") from error

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """The result of a call. Raises ServerError if the connection is lost, MCPError for an error of the protocol."""
        self.num_calls += 1
        try:
            client = await self._client()
            result = await client.call_tool(name, arguments)
        except asyncio.CancelledError as error:
            self._num_unanswered += error.args == (TIME_LIMIT,)  # not a rollout that was aborted
            if self._num_unanswered >= MOST_UNANSWERED:
                self._lose()
            raise
        except (MCPError, *LOST) as error:
            if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
                raise
            self._lose()
            raise ServerError(f"{self._server.name} was lost: {describe(error)}") from error
        finally:
            self.num_calls -= 1
        self._num_unanswered = 0
        return result

    async def close(self) -> None:
        """Ends the session, and waits until it has ended."""
        self._lose()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _client(self) -> Client:
        if self._opened is None:
            self._opened, self._left, self._num_unanswered = asyncio.get_running_loop().create_future(), asyncio.Event(), 0
            self._holder = asyncio.create_task(self._hold(self._opened, self._left))
            self._leaving.add(self._holder)
            self._holder.add_done_callback(self._leaving.discard)
        opened = self._opened
        try:
            return await asyncio.wait_for(asyncio.shield(opened), self._server.start_seconds)
        except Exception as error:  # of a library below the library, often in groups
            if self._opened is opened:
                self._lose()
            seconds = f" within {self._server.start_seconds:g} s" if isinstance(error, TimeoutError) else ""
            raise ServerError(f"{self._server.name} did not start{seconds}: {describe(_first(error))}") from error

    async def _hold(self, opened: "asyncio.Future[Client]", left: asyncio.Event) -> None:
        """Keeps a session open: a context must be left by the task that entered it."""
        try:
            async with self._server.client() as client:
                opened.set_result(client)
                await left.wait()
        except Exception as error:
            if opened.done():
                logger.warning("%s: %s", self._server.name, describe(_first(error)))
            else:
                opened.set_exception(error)
                opened.exception()  # whoever waits still gets it; if none does, asyncio need not say so

    def _lose(self) -> None:
        self._left.set()
        if self._holder is not None and self._opened is not None and not self._opened.done():
            self._holder.cancel()
        self._opened = self._holder = None


async def _called(context: Context, connections: _Connections, tool: str, /, **arguments: Any) -> str:
    """A call's result as text. Raises ToolRefusal with the server's words where it says that the call was wrong."""
    try:
        result = await connections.call(tool, arguments)
    except MCPError as error:
        if error.code == INVALID_PARAMS:
            raise ToolRefusal(error.message) from error
        raise
    for block in result.content:
        if block.type in ("image", "audio") or (block.type == "resource" and hasattr(block.resource, "blob")):
            context.trace.count("tool_media")
    text = "\n".join(_text(block) for block in result.content)
    if not result.content and result.structured_content is not None:
        text = orjson.dumps(result.structured_content).decode()
    if result.is_error:
        raise ToolRefusal(text or "it failed and did not say why")
    return text


def _text(block: Any) -> str:
    """A block of a result as text; content that is not text is replaced by its type."""
    if block.type == "text":
        return block.text
    if block.type in ("image", "audio"):
        return f"[{block.mime_type}, {_size(block.data)} bytes, not shown]"
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    resource = block.resource
    return getattr(resource, "text", None) or f"[{resource.uri}, {_size(getattr(resource, 'blob', ''))} bytes, not shown]"


def _size(data: str) -> int:
    """Number of bytes that a base64 text encodes."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def _first(error: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
