"""The time that an agent has used of its limit: it stands still while the infrastructure keeps the agent waiting.

That is while a model call waits for a lost server, while the gate of a weight sync is closed, and while weights are brought to
the servers that are at work for it. If one of several calls waits, the clock stands: parallel waits are taken off once.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class AgentClock:
    """Seconds since it was made, without those during which it was stopped; while it stands, so does the one `outside` it."""

    __slots__ = ("_num_stops", "_outside", "_since", "_started", "_stopped_seconds")

    def __init__(self, outside: "AgentClock | None" = None) -> None:
        self._outside = outside
        self._started = time.monotonic()
        self._stopped_seconds = 0.0
        self._num_stops = 0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """What it shows."""
        now = self._since if self._num_stops else time.monotonic()
        return now - self._started - self._stopped_seconds

    def stop(self) -> None:
        """Stops it until `go` has been called as often."""
        if self._num_stops == 0:
            self._since = time.monotonic()
            if self._outside is not None:
                self._outside.stop()
        self._num_stops += 1

    def go(self) -> None:
        """Takes one `stop` back."""
        assert self._num_stops > 0, "the clock was not stopped"
        self._num_stops -= 1
        if self._num_stops == 0:
            self._stopped_seconds += time.monotonic() - self._since
            if self._outside is not None:
                self._outside.go()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops it for a block."""
        self.stop()
        try:
            yield
        finally:
            self.go()
