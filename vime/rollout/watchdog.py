"""Finds a hook that blocks the event loop (a loop without `await`, `time.sleep`), which no time limit of asyncio can end.

A thread checks that the loop responds. If it does not, the thread logs where the loop is stuck and then raises `HookBlocked`
there. Code that never returns to Python cannot be interrupted; then the process exits, and another worker takes over.
"""

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
import traceback

from vime.rollout.within import HookBlocked

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
WARN_SECONDS = 5.0
"""A loop that was blocked for so long is logged."""
EXIT_CODE = 70


class Watchdog:
    """Watches the event loop that starts it."""

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
