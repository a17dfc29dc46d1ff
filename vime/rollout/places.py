"""How many rollouts a worker runs at once, and how many it has run."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from vime.rollout.trace import Trace


class Places:
    """`async with places.taken(trace):` waits for one of `limit` places; `with places.counted():` takes none."""

    def __init__(self, limit: int) -> None:
        self.num_running = 0
        self.num_ended = 0
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def taken(self, trace: Trace) -> AsyncIterator[None]:
        """A place for the block; `trace` gets the time of waiting for it as the rollout's queue."""
        arrived = time.time()
        async with self._free:
            trace.add("queue", kind="queue", started=arrived)
            with self.counted():
                yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what happens in the block as one rollout."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self.num_ended += 1
