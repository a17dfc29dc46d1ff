"""`Steps`: the calls of one episode, each once and within a time limit, on the thread of the episode."""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from random import random
from typing import Any

from vime.blame import users_traceback
from vime.environments.environment import IllegalMove, NoPlaceError
from vime.errors import SandboxError, VimeError, describe
from vime.rollout.context import Context
from vime.rollout.within import HookTimeout, within
from vime.threads import handed_over

logger = logging.getLogger(__name__)

KIND = "environment"
"""The kind of the spans of an environment in a rollout's timeline."""
WAITING_SECONDS = 0.5
"""The shortest pause before an environment without a free place is asked again; the longest is twice as long."""
CLOSE_SECONDS = 30.0
"""Time for an episode to free what it holds."""
TOLD_SECONDS = 60.0
"""Time after which a rollout that waits for a place says so."""
MOST_WAITING_SECONDS = 3600.0
"""Time after which an environment without a free place counts as lost."""


class Steps:
    """The calls of one episode: one after another, each once, those that are not async in one thread of their own."""

    def __init__(self, context: Context, seconds: float) -> None:
        self._context, self._seconds = context, seconds
        self.closes: Callable[[], Any] | None = None
        """Frees what the episode holds."""
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stuck = False

    async def call(self, name: str, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """The result of one call, within a step's time limit or `seconds`.

        Raises HookTimeout after that, IllegalMove and NoPlaceError, and SandboxError for any other error.
        """
        try:
            with self._context.trace.span(name, kind=KIND):
                return await within(self.begun(function, *arguments), seconds or self._seconds, clock=self._context.clock)
        except (HookTimeout, asyncio.CancelledError):
            self._is_stuck = True
            raise
        except (IllegalMove, NoPlaceError, VimeError):  # errors that say themselves what is to become of the rollout
            raise
        except Exception as error:  # the boundary of an environment: whatever breaks it costs this attempt at the rollout
            logger.warning("%s of the environment raised\n%s", name, users_traceback(error))
            raise SandboxError(f"{name} of the environment: {describe(error)}") from error

    async def placed(self, name: str, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """The result of a call, as soon as the environment has a place; the wait is not on the agent's time.

        Raises SandboxError if there is none within MOST_WAITING_SECONDS, and what `call` raises.
        """
        began, is_told = time.time(), False
        while True:
            try:
                return await self.call(name, function, *arguments, seconds=seconds)
            except NoPlaceError as error:
                if time.time() - began > MOST_WAITING_SECONDS:
                    raise SandboxError(f"the environment had no place within {MOST_WAITING_SECONDS:g} s: {error}") from error
                if time.time() - began > TOLD_SECONDS and not is_told:
                    is_told = True
                    logger.warning("a rollout has waited %.0f s for a place in its environment: %s", TOLD_SECONDS, error)
            waited = time.time()
            with self._context.clock.stopped():
                await asyncio.sleep(WAITING_SECONDS * (1 + random()))
            self._context.trace.add("place", kind="queue", started=waited)

    def closing(self, opens: Callable[[], Any]) -> Callable[[], Any]:
        """`opens`, whose episode is closed at once if no one waits for it any more."""

        def opened() -> Any:
            episode = opens()
            if self._is_stuck and callable(close := getattr(episode, "close", None)):
                _quietly(close)
            return episode

        return opened

    async def end(self) -> None:
        """Closes the episode and ends its thread; a thread in which a step hangs is left to itself, and closes when it ends."""
        closes, self.closes = self.closes, None
        if closes is not None:
            if self._is_stuck and not inspect.iscoroutinefunction(closes):
                self._calls.put(lambda: _quietly(closes))
            else:
                try:
                    await within(self.begun(closes), CLOSE_SECONDS)
                except Exception as error:  # the rollout has its result
                    logger.warning("close of the environment: %s", describe(error))
        self._calls.put(None)

    async def begun(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function that is async, or else runs in the episode's thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        result = await self._threaded(function, *arguments)
        return await result if inspect.isawaitable(result) else result

    def _threaded(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        call, done = handed_over(partial(function, *arguments))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="episode")
            self._thread.start()
        self._calls.put(call)
        return done

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _quietly(closes: Callable[[], Any]) -> None:
    try:
        closes()
    except Exception as error:  # the boundary of an environment that is given up
        logger.warning("close of the environment: %s", describe(error))
