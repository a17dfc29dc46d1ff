"""Runs an evaluation beside the generation; a weight sync waits for it, because it needs one weight version throughout."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from vime.tasks import cancel


class Pin:
    """Holds one piece of work, an evaluation, at a time.

    Example: `pin.start(session.evaluate(…))` after a sync; `await pin.released()` before the next.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins the work; it goes on while the caller does other things."""
        assert self._task is None, "the servers are pinned already"
        self._task = asyncio.create_task(work)

    async def released(self) -> None:
        """Waits until the work is done, and raises its exception if it failed; each item has time limits of its own."""
        if self._task is not None:
            task, self._task = self._task, None
            try:
                await task
            except asyncio.CancelledError:
                task.cancel()
                raise

    async def cancel(self) -> None:
        """Cancels the work."""
        if self._task is not None:
            await cancel([self._task])
            self._task = None
