"""How many rollouts a worker runs at once, and how many it has run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from vime.rollout.trace import Trace


class Places:
    """`async with places.taken(trace):` waits for one of `limit` places."""

    def __init__(self, limit: int) -> None:
        self.num_running = 0
        self.num_ended = 0
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def taken(self, trace: Trace, *, queues: bool = True) -> AsyncIterator[None]:
        """A place for the block, which counts as one rollout; `trace` gets the time of waiting for it as the rollout's queue.

        What does not queue runs beside the others at once.
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
