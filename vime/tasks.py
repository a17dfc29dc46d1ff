"""Waiting for several things of which one may fail: none is left behind when the wait is over."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

CANCEL_AGAIN_SECONDS = 1.0


async def together(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results in order, or the first failure: then, and when the wait is cancelled, the others are cancelled too."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels what is not done yet and waits for its end; how it ends is of no interest any more.

    Again and again: in Python 3.11 `asyncio.wait_for` forgets a cancellation that comes just as what it waits for is there, and a
    loop around it would go on for ever.
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
