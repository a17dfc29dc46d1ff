"""The calls of one worker to the trained model: held back while weights are synced, and measured.

With `rollout.in_flight_updates=false` a sync closes the gate: calls in flight end under the old weights, new ones wait, and so
no call sees two versions.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the trained model was used for since a worker began.

    Example: two calls side by side for 3 s: `Usage(busy_seconds=3.0, call_seconds=6.0, num_calls=2)`.
    """

    busy_seconds: float = 0.0
    """Time in which at least one call was in flight."""
    call_seconds: float = 0.0
    """Durations of all calls, added up."""
    num_calls: int = 0


class Traffic:
    """A gate that counts; all methods belong to one event loop."""

    def __init__(self) -> None:
        self._num_in_flight = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = time.monotonic()
        self._busy_seconds = self._call_seconds = 0.0
        self._num_calls = 0

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around one call: waits until the gate is open."""
        await self._open.wait()
        self._book()
        self._num_in_flight += 1
        self._num_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._book()
            self._num_in_flight -= 1
            if self._num_in_flight == 0:
                self._idle.set()

    async def hold(self, timeout_seconds: float) -> bool:
        """Closes the gate and waits for the calls in flight; False if some had not ended in time."""
        self._open.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def release(self) -> None:
        """Opens the gate."""
        self._open.set()

    def usage(self) -> Usage:
        """Totals until now."""
        self._book()
        return Usage(busy_seconds=self._busy_seconds, call_seconds=self._call_seconds, num_calls=self._num_calls)

    def _book(self) -> None:
        now = time.monotonic()
        if self._num_in_flight:
            self._busy_seconds += now - self._changed
            self._call_seconds += self._num_in_flight * (now - self._changed)
        self._changed = now
