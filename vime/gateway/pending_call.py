"""One request of a client while it is answered; several connections, one after another, may wait for its answer.

A client whose connection broke sends its request again and finds the same answer, from the first piece on. So the request goes on
without its client; the session ends it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from vime.chat.request import ChatAnswer, Delta, Usage, deltas_of
from vime.trajectory.trajectory import Call

Said = tuple[int, Delta]
"""A piece of the answer with this number, of `n`."""


class PendingCall:
    """A request under way, or answered."""

    def __init__(self) -> None:
        self.is_delivered = False
        """True if any of it was sent to a client (`deliver`)."""
        self.is_complete = False
        """True if a client got all of it."""
        self.replies: list[Call] = []
        """The model calls that answer it."""
        self.usage = Usage()
        """Tokens of its prompt."""
        self._num_followers = 0
        self._connections: list[asyncio.BaseTransport] = []
        self._said: list[Said] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[list[ChatAnswer]] | None = None

    def start(self, work: Coroutine[Any, Any, list[ChatAnswer]]) -> None:
        """Begins to answer."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._ended)

    def say(self, place: int, delta: Delta) -> None:
        """Adds a piece of an answer."""
        self._said.append((place, delta))
        self._wake()

    def follow(self, connection: asyncio.BaseTransport | None) -> None:
        """Notes a connection that waits for it."""
        if connection is not None:
            self._connections.append(connection)

    @property
    def is_broken(self) -> bool:
        """True if all its connections were lost before their end, so that the client may ask again."""
        return not self.is_complete and all(connection.is_closing() for connection in self._connections)

    def deliver(self) -> None:
        """Notes that its client, unless it has gone, gets the answer or its beginning: the sampled tokens are then trained."""
        if self.is_broken:
            return
        self.is_delivered = True
        for reply in self.replies:
            reply.delivered = True

    async def answers(self) -> list[ChatAnswer]:
        """The whole answers; raises the error of their computation."""
        assert self._task is not None, "start comes first"
        return await asyncio.shield(self._task)

    async def pieces(self) -> AsyncIterator[Said]:
        """All pieces from the first on, each as soon as it is there; ends with the answers. Raises the error of their
        computation."""
        assert self._task is not None, "start comes first"
        place = 0
        self._num_followers += 1
        try:
            while True:
                news = self._news
                while place < len(self._said):
                    yield self._said[place]
                    place += 1
                if self._task.done():
                    self._shorten(self._task.result())
                    return
                await news.wait()
        finally:
            self._num_followers -= 1

    def _shorten(self, answers: list[ChatAnswer]) -> None:
        """Keeps whole answers in place of their pieces, for a client that asks again."""
        if self._num_followers == 1:
            self._said = [(place, delta) for place, answer in enumerate(answers) for delta in deltas_of(answer.message)]

    def cancel(self) -> None:
        """Gives the request up."""
        if self._task is not None:
            self._task.cancel()

    @property
    def work(self) -> "asyncio.Task[list[ChatAnswer]] | None":
        """The task that answers it."""
        return self._task

    @property
    def is_over(self) -> bool:
        """True if it was answered, or has failed."""
        return self._task is not None and self._task.done()

    def _ended(self, task: "asyncio.Task[list[ChatAnswer]]") -> None:
        if not task.cancelled():
            task.exception()  # so that asyncio does not complain if its client has gone
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
