"""Work that needs the servers to keep one weight version, side by side with the generation: a sync waits for it."""

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
        """Waits until the work is done (each of its items has its limits); raises what it raised."""
        if self._task is not None:
            task, self._task = self._task, None
            try:
                await task
            except asyncio.CancelledError:
                task.cancel()
                raise

    async def cancel(self) -> None:
        """Ends the work where it stands."""
        if self._task is not None:
            await cancel([self._task])
            self._task = None
