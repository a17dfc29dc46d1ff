"""Tools and sandboxes of an agent: each call has a time limit, is repeated where it may be, and every outcome is counted.

    def search(query: str, limit: int = 3) -> list[str]:
        '''Searches the encyclopedia.'''
        ...

    toolbox = ToolBox(context, [search, Tool(name="pay", call=pay, parameters=SCHEMA)], max_calls=20)
    talk = context.models["actor"].conversation(sample.prompt, tools=toolbox.schemas)
    while calls := (await talk.reply(max_tokens=512)).tool_calls:
        talk.add(await toolbox.results(calls))
    return context.samples(sample)

A failure of a tool is reported to the agent. A lost server or sandbox is the infrastructure's fault: it ends the rollout, which
is run again.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, wraps
from typing import Any, cast

import orjson
from pydantic import TypeAdapter, ValidationError, validate_call

from vime.agent.sandbox import Sandbox
from vime.blame import users_traceback
from vime.chat.agent_clock import AgentClock
from vime.chat.trace import Trace
from vime.errors import SandboxError, ServerError, ToolLimitError, VimeError
from vime.rollout.context import Context
from vime.rollout.within import HookTimeout, describe, within
from vime.threads import handed_over
from vime.trajectory.messages import parsed
from vime.types import Message

logger = logging.getLogger(__name__)

WRONG_ARGUMENTS = (ValueError, TypeError)
"""Errors of a tool that was called wrongly by the agent, so that a retry would not help."""
INFRASTRUCTURE = (SandboxError, ServerError)
"""Errors that are not the agent's fault, from which nothing should be learned."""


class ToolRefusal(ValueError):
    """Raised by a tool to reject a call; its message is shown to the agent unchanged."""


class ToolOutcome(str, Enum):
    """Outcomes of a tool call; each is counted as `tool_<outcome>`."""

    ANSWERED = "answered"
    REFUSED = "refused"
    RAISED = "raised"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The outcome of a tool call.

    Example: `ToolResult(outcome=ToolOutcome.TIMED_OUT, error="search ran longer than rollout.tool_timeout_seconds=60")`; `error`
    is a line that can be shown to the agent.
    """

    outcome: ToolOutcome
    output: Any = None
    error: str = ""
    num_retries: int = 0
    lost: VimeError | None = None
    """The infrastructure error that kept the tool from answering, if there was one; raising it ends the rollout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function that a model can call by name, with a JSON schema of its arguments.

    Example: `Tool(name="add", call=add, parameters={"type": "object", "properties": {"a": {"type": "number"}}})`; `Tool.of(add)`
    reads the same from the function.
    """

    name: str
    call: Callable[..., Any]
    """Called with the arguments by name; async or not. ValueError and TypeError say that the agent called it wrongly."""
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    description: str = ""
    seconds: float | None = None
    """Time limit of one attempt; None for `rollout.tool_timeout_seconds`."""
    repeatable: bool = False
    """True if a call that failed or ran out of time may be made again (`rollout.max_tool_retries`): it changes nothing."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, seconds: float | None = None, repeatable: bool = False) -> "Tool":
        """The tool of a Python function: its name, docstring, and the types of its arguments, which each call is checked against.

        Raises ValueError for a function whose arguments have no JSON schema.
        """
        try:
            described = TypeAdapter[Any](cast(Any, function))
            parameters = described.json_schema()
            checked = validate_call(function)
        except Exception as error:  # pydantic has many errors for types that it cannot describe
            raise ValueError(f"{function} cannot be a tool: {describe(error)}; give its arguments types of JSON") from error
        call = wraps(function)(_awaited(checked)) if inspect.iscoroutinefunction(function) else checked
        name = getattr(function, "__name__", type(function).__name__)
        parameters = {key: value for key, value in parameters.items() if key != "title"}
        description = inspect.getdoc(function) or ""
        return cls(name=name, call=call, parameters=parameters, description=description, seconds=seconds, repeatable=repeatable)

    @classmethod
    def from_schema(cls, schema: dict[str, Any], call: Callable[..., Any], **limits: Any) -> "Tool":
        """The tool that a schema in OpenAI's form describes; `limits` are `seconds` and `repeatable`."""
        function = schema["function"]
        about = {"parameters": function.get("parameters") or {"type": "object"}, "description": function.get("description", "")}
        return cls(name=function["name"], call=call, **about, **limits)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's description in OpenAI's form, for `conversation(…, tools=…)`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolBox:
    """The tools of one rollout: executes the tool calls of a reply and returns their results as messages."""

    def __init__(self, context: Context, tools: Iterable[Tool | Callable[..., Any]], *, max_calls: int | None = None) -> None:
        """Functions become tools by `Tool.of`. With `max_calls` the rollout ends when more are made.

        Raises ValueError for two tools of one name, because an agent could not tell them apart.
        """
        found = [tool if isinstance(tool, Tool) else Tool.of(tool) for tool in tools]
        self.tools = {tool.name: tool for tool in found}
        if len(self.tools) < len(found):
            raise ValueError(f"two tools have one name: {sorted(tool.name for tool in found)}")
        self.num_calls = 0
        self._context, self._max_calls = context, max_calls

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """All tools in OpenAI's form."""
        return [tool.schema for tool in self.tools.values()]

    async def results(self, calls: list[dict[str, Any]]) -> list[Message]:
        """The messages that answer the calls of a reply (`turn.tool_calls`), in their order; the calls are made side by side.

        Every failure is reported in the message: an unknown tool, invalid arguments, an error or the time limit. Results are
        text, at most `rollout.max_tool_characters` of them.

        Raises ToolLimitError, which ends the rollout as `turn_limit`, if the calls are more than `max_calls` allows; ServerError
        or SandboxError if a tool has lost its server or sandbox.
        """
        self.num_calls += len(calls)
        if self._max_calls is not None and self.num_calls > self._max_calls:
            raise ToolLimitError(f"{self.num_calls} tool calls, and {self._max_calls} are allowed")
        contents = await asyncio.gather(*(self._content(call["function"]) for call in calls))
        return [
            {"role": "tool", "name": call["function"]["name"], "tool_call_id": call.get("id") or "", "content": content}
            for call, content in zip(calls, contents, strict=True)
        ]

    async def _content(self, function: dict[str, Any]) -> str:
        tool, arguments = self.tools.get(function["name"]), parsed(function["arguments"])
        if tool is None:
            self._context.trace.count("tool_unknown")
            return f"Error: there is no tool {function['name']}; there are: {', '.join(self.tools)}"
        if not isinstance(arguments, dict):
            self._context.trace.count("tool_refused")
            return f"Error: the arguments of {tool.name} are not a JSON object"
        attempts = 1 + (self._context.config.rollout.max_tool_retries if tool.repeatable else 0)
        result = await _run(self._context, tool.name, tool.call, (), arguments, seconds=tool.seconds, attempts=attempts)
        if result.lost is not None:
            raise result.lost
        content = shown(result.output) if result.outcome is ToolOutcome.ANSWERED else f"Error: {result.error}"
        most = self._context.config.rollout.max_tool_characters
        if len(content) <= most:
            return content
        self._context.trace.count("tool_cut")
        return f"{content[: most - most // 4]}\n[{len(content) - most} characters are left out here]\n{content[-(most // 4) :]}"


def shown(output: Any) -> str:
    """The output of a tool as text for a message: text unchanged, bytes decoded, everything else as JSON."""
    if isinstance(output, str):
        return output
    if isinstance(output, (bytes, bytearray, memoryview)):
        try:
            return bytes(output).decode()
        except UnicodeDecodeError:
            return f"[{len(bytes(output))} bytes that are not text]"
    try:
        return orjson.dumps(output, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        return str(output)


async def run_tool(context: Context, name: str, tool: Callable[..., Any], /, *arguments: Any, **named: Any) -> ToolResult:
    """Calls `tool(*arguments, **named)`, async or not, and returns its outcome.

    ValueError and TypeError are the agent's mistake (refused); everything else is tried again `rollout.max_tool_retries` times.
    A lost server or sandbox is in the result's `lost`.

    A function that is not async runs in a thread of its own, so that it cannot hold up other rollouts; its result is awaited if
    it is awaitable.
    """
    attempts = 1 + context.config.rollout.max_tool_retries
    return await _run(context, name, tool, arguments, named, seconds=None, attempts=attempts)


async def _run(
    context: Context,
    name: str,
    tool: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    *,
    seconds: float | None,
    attempts: int,
) -> ToolResult:
    limit = context.config.rollout.tool_timeout_seconds if seconds is None else seconds
    limit_named = f"rollout.tool_timeout_seconds={limit:g}" if seconds is None else f"its limit of {limit:g} s"
    result, lost = ToolResult(outcome=ToolOutcome.RAISED), None
    for attempt in range(attempts):
        with context.trace.span(name, kind="tool") as details:
            result = await _call_tool(name, tool, arguments, named, limit, limit_named, attempt, context.clock)
            details["outcome"] = result.outcome.value
        lost = result.lost or lost
        if result.outcome in (ToolOutcome.ANSWERED, ToolOutcome.REFUSED):
            lost = None
            break
    context.trace.count("tool_calls")
    context.trace.count(f"tool_{result.outcome.value}")
    for _ in range(result.num_retries):
        context.trace.count("tool_retries")
    if lost is not None:
        context.trace.count("tool_lost")
    return replace(result, lost=lost)


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(**arguments: Any) -> Any:
        return await function(**arguments)

    return call


async def run_sandbox(context: Context, name: str, action: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Starts or uses a sandbox by `await action(*arguments, **named)`, which is repeated after a failure.

    The time limit of a `Sandbox`'s method begins when it has a place. Raises SandboxError after `rollout.max_sandbox_retries`;
    the rollout then ends as `sandbox_crashed` and is run again.
    """
    config = context.config.rollout
    error = ""
    for attempt in range(config.max_sandbox_retries + 1):
        context.trace.count("sandbox_calls" if attempt == 0 else "sandbox_retries")
        try:
            async with _place(action, name, context.trace):
                with context.trace.span(name, kind="sandbox"):
                    return await within(action(*arguments, **named), config.sandbox_timeout_seconds)
        except HookTimeout:
            error = f"{name} ran longer than rollout.sandbox_timeout_seconds={config.sandbox_timeout_seconds:g}"
        except Exception as raised:  # the boundary of a sandbox: whatever breaks it is tried again, then costs this rollout
            error = describe(raised)
        logger.warning("sandbox %s of session %s: %s", name, context.session_id, error)
    raise SandboxError(f"{name}: {error}")


@asynccontextmanager
async def _place(action: Callable[..., Any], name: str, trace: Trace) -> AsyncIterator[None]:
    """Waits for the place that a `Sandbox`'s method needs, and books the wait as `queue`; other actions need none."""
    sandbox = getattr(action, "__self__", None)
    if not isinstance(sandbox, Sandbox):
        yield
        return
    arrived = time.time()
    async with sandbox.place():
        trace.add(name, kind="queue", started=arrived)
        yield


async def _call_tool(
    name: str,
    tool: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    seconds: float,
    limit_named: str,
    attempt: int,
    clock: AgentClock,
) -> ToolResult:
    try:
        call = tool(*arguments, **named) if inspect.iscoroutinefunction(tool) else _in_thread(tool, arguments, named)
        return ToolResult(outcome=ToolOutcome.ANSWERED, output=await within(call, seconds, clock=clock), num_retries=attempt)
    except HookTimeout:
        error = f"{name} ran longer than {limit_named}"
        return ToolResult(outcome=ToolOutcome.TIMED_OUT, error=error, num_retries=attempt)
    except WRONG_ARGUMENTS as raised:
        logger.info("tool %s refused its arguments\n%s", name, users_traceback(raised))
        error = _what_is_wrong(raised)
        return ToolResult(outcome=ToolOutcome.REFUSED, error=error, num_retries=attempt)
    except Exception as raised:  # the boundary of a tool: the agent is told, the rollout goes on
        logger.warning("tool %s raised\n%s", name, users_traceback(raised))
        lost = raised if isinstance(raised, INFRASTRUCTURE) else None
        return ToolResult(outcome=ToolOutcome.RAISED, error=describe(raised), num_retries=attempt, lost=lost)


def _what_is_wrong(error: ValueError | TypeError) -> str:
    """The reason why a tool refuses its arguments, in one line if it is their types."""
    if not isinstance(error, ValidationError):
        return str(error) if isinstance(error, ToolRefusal) else describe(error)
    found = [f"{'.'.join(map(str, one['loc'])) or 'the arguments'}: {one['msg']}" for one in error.errors()]
    return "; ".join(found)


async def _in_thread(tool: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of a blocking function, run in a thread of its own so that a hanging one takes no place in a pool.

    A function that is async without being known as such (an object with `async __call__`) returns what is awaited here.
    """
    call, done = handed_over(partial(tool, *arguments, **named))
    threading.Thread(target=call, daemon=True, name=f"tool {getattr(tool, '__name__', tool)}").start()
    value = await done
    return await value if inspect.isawaitable(value) else value
