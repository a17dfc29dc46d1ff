"""Runs tools and sandboxes of an agent with a time limit and retries, and counts every outcome.

A failure of a tool can be reported to the agent; a failure of a sandbox is the infrastructure's fault and ends the rollout.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from vime.agent.sandbox import Sandbox
from vime.blame import users_traceback
from vime.errors import SandboxError
from vime.rollout.agent_clock import AgentClock
from vime.rollout.context import Context
from vime.rollout.trace import Trace
from vime.rollout.within import HookTimeout, describe, within

logger = logging.getLogger(__name__)

WRONG_ARGUMENTS = (ValueError, TypeError)
"""Errors of a tool that was called wrongly by the agent, so that a retry would not help."""


class ToolOutcome(str, Enum):
    """How a tool call ended; each is counted as `tool_<outcome>`."""

    ANSWERED = "answered"
    REFUSED = "refused"
    RAISED = "raised"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The outcome of a tool call.

    Example: `ToolResult(outcome=Outcome.TIMED_OUT, error="search ran longer than rollout.tool_timeout_seconds=60")`; `error` is
    a line that can be shown to the agent.
    """

    outcome: ToolOutcome
    output: Any = None
    error: str = ""
    num_retries: int = 0


async def run_tool(context: Context, name: str, tool: Callable[..., Any], /, *arguments: Any, **named: Any) -> ToolResult:
    """Calls `tool(*arguments, **named)`, async or not, and returns its outcome.

    ValueError and TypeError are the agent's mistake (refused); everything else is tried again `rollout.max_tool_retries` times.
    A function that is not async runs in a thread of its own, so that it cannot hold up other rollouts; what it returns is awaited
    if it can be.
    """
    config = context.config.rollout
    result = ToolResult(outcome=ToolOutcome.RAISED)
    for attempt in range(config.max_tool_retries + 1):
        with context.trace.span(name, kind="tool") as details:
            result = await _call_tool(name, tool, arguments, named, config.tool_timeout_seconds, attempt, context.clock)
            details["outcome"] = result.outcome.value
        if result.outcome in (ToolOutcome.ANSWERED, ToolOutcome.REFUSED):
            break
    context.trace.count("tool_calls")
    context.trace.count(f"tool_{result.outcome.value}")
    for _ in range(result.num_retries):
        context.trace.count("tool_retries")
    return result


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
    attempt: int,
    clock: AgentClock,
) -> ToolResult:
    try:
        call = tool(*arguments, **named) if inspect.iscoroutinefunction(tool) else _in_thread(tool, arguments, named)
        return ToolResult(outcome=ToolOutcome.ANSWERED, output=await within(call, seconds, clock=clock), num_retries=attempt)
    except HookTimeout:
        error = f"{name} ran longer than rollout.tool_timeout_seconds={seconds:g}"
        return ToolResult(outcome=ToolOutcome.TIMED_OUT, error=error, num_retries=attempt)
    except WRONG_ARGUMENTS as raised:
        logger.info("tool %s refused its arguments\n%s", name, users_traceback(raised))
        return ToolResult(outcome=ToolOutcome.REFUSED, error=describe(raised), num_retries=attempt)
    except Exception as raised:  # the boundary of a tool: the agent is told, the rollout goes on
        logger.warning("tool %s raised\n%s", name, users_traceback(raised))
        return ToolResult(outcome=ToolOutcome.RAISED, error=describe(raised), num_retries=attempt)


async def _in_thread(tool: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of a blocking function, run in a thread of its own so that a hanging one takes no place in a pool.

    A function that is async without being known as such (an object with `async __call__`) returns what is awaited here.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            method(value)

    def call() -> None:
        try:
            value, method = tool(*arguments, **named), done.set_result
        except BaseException as raised:  # handed over to the coroutine that waits
            value, method = raised if isinstance(raised, Exception) else RuntimeError(describe(raised)), done.set_exception
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, method, value)

    threading.Thread(target=call, daemon=True, name=f"tool {getattr(tool, '__name__', tool)}").start()
    value = await done
    return await value if inspect.isawaitable(value) else value
