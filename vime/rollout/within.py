"""Runs a user's coroutine within a time limit; it can neither delay the caller any longer nor end the event loop."""

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable
from typing import TypeVar

from vime.chat.agent_clock import AgentClock

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_GRACE_SECONDS = 5.0
"""Seconds that a cancelled coroutine has to clean up."""
TIME_LIMIT = "time limit"
"""Message of the cancellation of a call that ran too long; one whose caller was cancelled has none."""
SHORTEST_WAIT_SECONDS = 0.05
"""The shortest pause before a clock that may be stopped is read again."""


class HookTimeout(Exception):
    """The time limit was exceeded."""


class HookBlocked(BaseException):
    """Raised inside a hook that blocks the event loop (`vime.rollout.within`); a BaseException, so that hooks let it pass."""


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
    task.cancel(TIME_LIMIT)
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
    """Retrieves the exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
WARN_SECONDS = 5.0
"""Seconds of a blocked loop after which it is logged."""
EXIT_CODE = 70


class Watchdog:
    """Finds a hook that blocks the event loop which starts it (a loop without `await`, `time.sleep`): no time limit can end it.

    A thread checks that the loop responds. If it does not, the thread logs where the loop is stuck and then raises `HookBlocked`
    there. Code that never returns to Python cannot be interrupted; then the process exits, and another worker takes over.
    """

    def __init__(self, max_blocked_seconds: float) -> None:
        self._limit = max_blocked_seconds
        self._beat_seconds = min(BEAT_SECONDS, max_blocked_seconds / 4)
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._last = time.monotonic()
        self._stopped = False
        self._beat()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped = True

    def _beat(self) -> None:
        self._last = time.monotonic()
        if not self._stopped:
            self._loop.call_later(self._beat_seconds, self._beat)

    def _watch(self) -> None:
        warned = interrupted = 0.0  # the beats that were followed by a warning and an interruption
        while not self._stopped and not self._loop.is_closed():
            time.sleep(self._beat_seconds)
            last, blocked = self._last, time.monotonic() - self._last
            if blocked > min(WARN_SECONDS, self._limit) and warned != last:
                warned = last
                logger.warning("the event loop of a rollout worker is blocked since %.0f s:\n%s", blocked, self._stack())
            if blocked > self._limit and interrupted != last:
                interrupted = last
                logger.error("interrupting it after rollout.max_blocked_seconds=%g", self._limit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(HookBlocked))
            if blocked > 2 * self._limit:
                logger.error("the event loop cannot be interrupted; the worker ends, and another one takes over")
                os._exit(EXIT_CODE)

    def _stack(self) -> str:
        """The innermost lines of the loop's stack."""
        frame = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame)[-4:]) if frame is not None else "?"
