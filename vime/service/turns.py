"""`Turns`: one thing that several owners use, one call at a time, and none of them more than another."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_OWNERS = 4096


class Turns:
    """A lock that is fair by owner, whatever the number of calls that each has waiting.

    The next is the owner whose last turn is longest ago, so that with n owners each waits for n - 1 calls of others at most.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._last: dict[str, int] = {}
        self._num_turns, self._is_taken = 0, False

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """A turn of an owner, whose calls come in the order in which they have asked."""
        if self._is_taken:
            mine = asyncio.get_running_loop().create_future()
            self._waiting[owner].append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._pass_on()  # it was this call's turn
                raise
        self._is_taken = True
        self._num_turns += 1
        self._last.pop(owner, None)
        self._last[owner] = self._num_turns
        if len(self._last) > MOST_OWNERS:
            del self._last[next(iter(self._last))]  # of those who are gone
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Wakes the next; the turn stays taken until it is awake."""
        self._is_taken = False
        while self._waiting:
            owner = min(self._waiting, key=lambda each: self._last.get(each, 0))
            asking = self._waiting[owner].popleft()
            if not self._waiting[owner]:
                del self._waiting[owner]
            if not asking.done():
                self._is_taken = True
                asking.set_result(None)
                return
