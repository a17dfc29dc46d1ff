"""The time that counts towards an agent's limit. The clock is stopped while the infrastructure keeps the agent waiting.

The infrastructure does so while a model call waits for a lost server, while the gate of a weight sync is closed, and while the
servers of a call in flight receive weights. One waiting call stops the clock; several at a time are not counted twice.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class AgentClock:
    """Counts seconds from its creation, except while it is stopped; stopping it also stops the clock `outside`."""

    __slots__ = ("_num_stops", "_outside", "_since", "_started", "_stopped_seconds")

    def __init__(self, outside: "AgentClock | None" = None) -> None:
        self._outside = outside
        self._started = time.monotonic()
        self._stopped_seconds = 0.0
        self._num_stops = 0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        now = self._since if self._num_stops else time.monotonic()
        return now - self._started - self._stopped_seconds

    def stop(self) -> None:
        """Stops the clock until `go` has been called as often as `stop`."""
        if self._num_stops == 0:
            self._since = time.monotonic()
            if self._outside is not None:
                self._outside.stop()
        self._num_stops += 1

    def go(self) -> None:
        """Undoes one `stop`."""
        assert self._num_stops > 0, "the clock was not stopped"
        self._num_stops -= 1
        if self._num_stops == 0:
            self._stopped_seconds += time.monotonic() - self._since
            if self._outside is not None:
                self._outside.go()

    def advance(self, seconds: float) -> None:
        """Adds seconds that have not really passed, for a scripted reply of a rehearsal that is to count as slow."""
        self._started -= seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock within a `with` block."""
        self.stop()
        try:
            yield
        finally:
            self.go()
