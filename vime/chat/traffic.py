"""Holds back and measures the calls of one worker to the trained model.

With `rollout.in_flight_updates=false` a weight sync closes the gate: calls in flight end under the old weights and new ones
wait, so that no call sees two versions. Otherwise the sync is only announced: servers are silent meanwhile, and the clocks of
the agents are stopped.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from vime.chat.agent_clock import AgentClock


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelUsage:
    """Usage of the trained model since a worker began.

    Example: two calls side by side for 3 s: `ModelUsage(busy_seconds=3.0, call_seconds=6.0, num_calls=2)`.
    """

    busy_seconds: float = 0.0
    """Time during which at least one call was in flight."""
    call_seconds: float = 0.0
    """Sum of the durations of all calls."""
    num_calls: int = 0


class Traffic:
    """A gate that counts the calls that pass; all methods belong to one event loop."""

    def __init__(self) -> None:
        self._clocks: dict[int, AgentClock] = {}
        """The clocks of the calls in flight, by the number of the call."""
        self._numbers = itertools.count()
        self._expects_weights = False
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = time.monotonic()
        self._busy_seconds = self._call_seconds = 0.0
        self._num_calls = 0

    @asynccontextmanager
    async def call(self, clock: AgentClock) -> AsyncIterator[bool]:
        """Around one call: waits until the gate is open, and yields whether it was closed.

        The agent's `clock` is stopped at the gate and while the servers receive weights.
        """
        if was_closed := not self._open.is_set():
            with clock.stopped():
                await self._open.wait()
        self._book()
        number = next(self._numbers)
        self._clocks[number] = clock
        self._num_calls += 1
        self._idle.clear()
        if self._expects_weights:
            clock.stop()
        try:
            yield was_closed
        finally:
            self._book()
            del self._clocks[number]
            if self._expects_weights:
                clock.go()
            if not self._clocks:
                self._idle.set()

    async def hold(self, timeout_seconds: float) -> bool:
        """Closes the gate and waits for the calls in flight; returns False if some did not end in time."""
        self._open.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    def release(self) -> None:
        """Opens the gate."""
        self._open.set()

    def expect_weights(self, expected: bool) -> None:
        """Announces that the servers of the calls in flight begin (or have ceased) to receive weights."""
        if expected == self._expects_weights:
            return
        self._expects_weights = expected
        for clock in self._clocks.values():
            if expected:
                clock.stop()
            else:
                clock.go()

    def is_paused(self) -> bool:
        """True if servers may be silent because of a sync."""
        return self._expects_weights or not self._open.is_set()

    def usage(self) -> ModelUsage:
        """Totals until now."""
        self._book()
        return ModelUsage(busy_seconds=self._busy_seconds, call_seconds=self._call_seconds, num_calls=self._num_calls)

    def _book(self) -> None:
        now = time.monotonic()
        if self._clocks:
            self._busy_seconds += now - self._changed
            self._call_seconds += len(self._clocks) * (now - self._changed)
        self._changed = now
