"""Limits how many rollouts a worker runs at once, and counts those it has run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from vime.chat.trace import Trace


class Places:
    """At most `limit` rollouts run at once within `async with places.taken(trace)`."""

    def __init__(self, limit: int) -> None:
        self.num_running = 0
        self.num_ended = 0
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def taken(self, trace: Trace, *, queues: bool = True) -> AsyncIterator[None]:
        """Waits for a place and counts the block as one rollout; `trace` books the wait as `queue`.

        With `queues=False` the block runs at once, beyond the limit.
        """
        arrived = time.time()
        async with self._free if queues else nullcontext():
            if queues:
                trace.add("queue", kind="queue", started=arrived)
            self.num_running += 1
            try:
                yield
            finally:
                self.num_running -= 1
                self.num_ended += 1
