"""`Silence`: ends a wait for a server that has sent nothing for too long.

One timer watches a whole reply. A task and a timer per piece would take as long as reading the piece.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType


class Silent(Exception):
    """The server has sent nothing for too long."""


class Silence:
    """Within its `with` block, `heard` is called whenever the server sent something.

    with Silence(120.0, is_explained=traffic.is_paused) as silence:
        data = await response.content.readany()
        silence.heard()

    The block raises Silent if `heard` was not called for this number of seconds, unless the silence `is_explained`.
    """

    def __init__(self, seconds: float, *, is_explained: Callable[[], bool]) -> None:
        self._seconds, self._is_explained = seconds, is_explained
        self._loop = asyncio.get_running_loop()
        self._has_ended = False

    def __enter__(self) -> "Silence":
        """Begins to listen."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be ended"
        self._task = task
        self.heard()
        self._timer = self._loop.call_at(self._since + self._seconds, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises Silent in place of the cancellation with which it has ended the block."""
        self._timer.cancel()
        if not self._has_ended:
            return
        uncancel = getattr(self._task, "uncancel", None)  # from Python 3.11 on
        is_cancelled_too = uncancel is not None and uncancel() > 0
        if kind is asyncio.CancelledError and not is_cancelled_too:
            raise Silent(f"it was silent for {self._seconds:g} s (serving.silence_timeout_seconds)") from None

    def heard(self) -> None:
        """Notes that the server has sent something."""
        self._since = self._loop.time()

    def _look(self) -> None:
        if self._is_explained():
            self.heard()
        rest = self._since + self._seconds - self._loop.time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._look)
        else:
            self._has_ended = True
            self._task.cancel()
