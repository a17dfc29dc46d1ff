"""Runs a user's coroutine within a time limit; it can neither delay the caller any longer nor end the event loop."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from vime.chat.agent_clock import AgentClock

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_GRACE_SECONDS = 5.0
"""How long a cancelled coroutine may clean up."""
SHORTEST_WAIT_SECONDS = 0.05
"""The shortest pause before a clock that may be stopped is read again."""


class HookTimeout(Exception):
    """The time limit was exceeded."""


class HookBlocked(BaseException):
    """Raised inside a hook that blocks the event loop (`vime.rollout.watchdog`); a BaseException, so that hooks let it pass."""


async def within(call: Awaitable[T], seconds: float, *, clock: AgentClock | None = None) -> T:
    """Returns the result of `call`, or raises what it raised; raises HookTimeout after `seconds`, measured by `clock` if given.

    A call that ignores its cancellation is abandoned. What would end the process (`sys.exit`) becomes a RuntimeError.
    """
    task = asyncio.ensure_future(_contained(call))
    began = 0.0 if clock is None else clock.seconds
    try:
        await asyncio.wait({task}, timeout=seconds)
        while clock is not None and not task.done() and (left := began + seconds - clock.seconds) > 0:
            await asyncio.wait({task}, timeout=max(left, SHORTEST_WAIT_SECONDS))
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(_retrieve)
        raise
    if task.done():
        return _result(task)
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
    if not task.done():
        logger.warning("a hook ignores that it was cancelled after %g s; it is left to itself", seconds)
    task.add_done_callback(_retrieve)
    raise HookTimeout(f"{seconds:g} s are over")


def describe(error: BaseException) -> str:
    """One line that names an exception."""
    return f"{type(error).__name__}: {error}"


async def _contained(call: Awaitable[T]) -> T:
    try:
        return await call
    except (SystemExit, KeyboardInterrupt, HookBlocked) as error:
        raise RuntimeError(describe(error)) from error


def _result(task: "asyncio.Task[T]") -> T:
    if task.cancelled():
        raise RuntimeError("the hook cancelled itself")
    return task.result()


def _retrieve(task: "asyncio.Task[T]") -> None:
    """Retrieves the exception, so that asyncio does not log that nobody did."""
    if not task.cancelled():
        task.exception()
