"""Waiting for several things of which one may fail: none is left behind when the wait is over."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any


async def together(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results in order, or the first failure: then, and when the wait is cancelled, the others are cancelled too."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels what is not done yet and waits for its end; how it ends is of no interest any more."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
