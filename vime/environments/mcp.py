"""Tools of an MCP server around a row: the model calls them as often as it likes, and a scorer judges its last reply.

    +method=environment method.environment=mcp 'method.settings={command: ["{python}", server.py, "{row}"], rows: mine.py:rows,
        score: mine.py:score}'

Each rollout has a server of its own, started for its row; `{row}` in its command is replaced by a file with the row as JSON, and
`{python}` by the interpreter of this process. With `url` all rollouts use one server.
"""

import asyncio
import inspect
import sys
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from vime.data.split import Split
from vime.environments.environment import NoPlaceError, Observation, Outcome, Reply, Row, found_hook, rows_of, tells_of_losses
from vime.errors import ConfigError, Problem, ServerError
from vime.rollout.context import Context
from vime.rollout.mcp_tools import McpServer
from vime.rollout.tool import ToolBox
from vime.threads import raising

ROW, PYTHON = "{row}", "{python}"


class McpTools:
    """The tools of one server, rows with questions, and a scorer.

    Example: `McpTools(command=["python", "server.py", "{row}"], rows="mine.py:rows", score="mine.py:score")`.
    """

    seats = ("agent",)
    step_seconds = 24 * 3600.0
    """Each tool has a time limit of its own."""

    def __init__(
        self,
        *,
        rows: str,
        score: str,
        command: list[str] | None = None,
        url: str = "",
        only: list[str] | None = None,
        instruction: str = "",
        num_servers: int | None = None,
        lost: str = "repeat",
    ) -> None:
        """`rows(num_items, seed)` makes rows, which are divided into splits; `score(row, text)` judges the last reply.

        Both are dotted paths. At most `num_servers` servers run at a time in each worker; further rollouts wait. If a server
        dies, `lost=repeat` runs the rollout again, `lost=tell` shows the model an error. Raises ConfigError for paths that cannot
        be imported, and for a server that is neither a command nor a URL.
        """
        self._rows, self.score = found_hook("rows", rows), found_hook("score", score)
        try:
            McpServer(command=command or (), url=url)
        except ValueError as error:
            raise ConfigError([Problem(key="method.settings.command", value=command, remedy=f"{error}: give one")]) from error
        self.command = [word.replace(PYTHON, sys.executable) for word in command or []]
        self.url, self.only, self.instruction = url, only, instruction
        self.tells, self._num_servers, self._num_open = tells_of_losses(lost), num_servers, 0

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """The rows of one split."""
        return rows_of(self._rows, split=split, num_items=num_items, seed=seed)

    async def open(self, row: Row, context: Context) -> "Episode":
        """A started server."""
        if self._num_servers is not None and self._num_open >= self._num_servers:
            raise NoPlaceError(f"{self._num_open} servers run")
        self._num_open += 1
        stack = AsyncExitStack()
        stack.callback(self._left)
        try:
            command = self.command
            if any(ROW in word for word in command):
                file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vime-mcp-")), "row.json")
                file.write_bytes(orjson.dumps(row, default=str))
                command = [word.replace(ROW, str(file)) for word in command]
            server = McpServer(command=command, url=self.url, only=self.only)
            await stack.enter_async_context(server)
            toolbox = ToolBox(context, await server.tools(context))
        except BaseException:  # raised again: what was started ends in any case
            await stack.aclose()
            raise
        return Episode(self, row, toolbox, stack)

    def _left(self) -> None:
        self._num_open -= 1


class Episode:
    """A conversation with tools, which ends with the first reply that calls none."""

    def __init__(self, made: McpTools, row: Row, toolbox: ToolBox, stack: AsyncExitStack) -> None:
        self._made, self._row, self._toolbox, self._stack = made, row, toolbox, stack
        messages = list(row["prompt"]) if row.get("prompt") else [{"role": "user", "content": row["question"]}]
        first = [{"role": "system", "content": made.instruction}] if made.instruction else []
        self._new: list[dict[str, Any]] | None = [*first, *messages]
        self._answer: str | None = None

    async def observe(self) -> Observation | None:
        """The question, then the results of the calls."""
        return None if self._new is None else Observation(content=self._new, tools=self._toolbox.schemas)

    async def act(self, reply: Reply) -> None:
        """Makes the calls of a reply, or takes its text as the answer."""
        if not reply.tool_calls:
            self._answer, self._new = reply.text, None
            return
        try:
            self._new = await self._toolbox.results(reply.tool_calls)
        except ServerError as error:
            if not self._made.tells:
                raise
            said = f"Error: {error}"
            self._new = [{"role": "tool", "tool_call_id": call.get("id") or "", "content": said} for call in reply.tool_calls]

    async def outcome(self) -> Outcome:
        """The score of the answer; 0 without one."""
        if self._answer is None:
            return Outcome(rewards=0.0, metrics={"answered": 0.0})
        score = self._made.score
        if inspect.iscoroutinefunction(score):
            value = await score(self._row, self._answer)
        else:
            value = await asyncio.to_thread(raising, score, self._row, self._answer)
        return Outcome(rewards=float(value), metrics={"answered": 1.0})

    async def close(self) -> None:
        """Ends the server."""
        await self._stack.aclose()
