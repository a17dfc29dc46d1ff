"""Waiting for several tasks that may fail: none is left running when the wait ends."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Protocol

logger = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS = 1.0


async def together(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results in order, or the first failure: then, and when the wait is cancelled, the others are cancelled too."""
    awaitables = list(awaitables)
    if len(awaitables) == 1:  # needs no task of its own
        return [await awaitables[0]]
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels unfinished tasks and waits for their end; their results and errors are ignored.

    The cancellation is repeated, because in Python 3.11 `asyncio.wait_for` forgets a cancellation that arrives together with its
    result, and a loop around it would never end.
    """
    tasks = list(tasks)
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # so that asyncio does not complain that nobody looked


class Stoppable(Protocol):
    """Something that runs until it is stopped."""

    async def stop(self) -> None: ...


async def stop_within(part: Stoppable, *, seconds: float) -> None:
    """Stops a part of the run; if it cannot be stopped in time, that is logged, and the other parts can still be stopped."""
    try:
        await asyncio.wait_for(part.stop(), seconds)
    except Exception:  # the boundary between the parts, at the end of a run
        logger.warning("%s did not stop cleanly", type(part).__name__, exc_info=True)


class Watches:
    """Coroutines that watch over parts of a run beside its loop, for as long as it lasts."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None

    def add(self, watch: Coroutine[Any, Any, None]) -> None:
        """Starts one. Should it fail, that is logged, and `check` raises it."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("the watch over a part of the run has failed", exc_info=error)
                self._error = self._error or error

        task = asyncio.create_task(watch)
        task.add_done_callback(ended)
        self._tasks.append(task)

    def check(self) -> None:
        """Raises the error of the first task that failed."""
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """Ends them all."""
        await cancel(self._tasks)
