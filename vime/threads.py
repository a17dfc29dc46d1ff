"""Blocking work in a bounded number of threads: callers wait for a thread, and one cancelled while it waits leaves nothing."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """Threads for one purpose; those of asyncio itself (`to_thread`) stay free for quick work.

    Example: `await Threads("tau2", num_threads=64).run(orchestrator.step)`.
    """

    def __init__(self, name: str, *, num_threads: int) -> None:
        self._num_threads = num_threads
        self._executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix=name)
        self._places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @property
    def num_queued(self) -> int:
        """Calls that were handed over and wait for a thread: none, as long as there is one event loop."""
        return self._executor._work_queue.qsize()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of `function(*arguments)`. If the caller is cancelled, the call still runs to its end in its thread."""
        places = self._places_of_this_loop()
        await places.acquire()
        work = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        work.add_done_callback(lambda done: _leave(places, done))
        return await asyncio.shield(work)

    def _places_of_this_loop(self) -> asyncio.Semaphore:
        for loop in list(self._places):
            if loop.is_closed():
                self._places.pop(loop, None)
        return self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._num_threads))


def _leave(places: asyncio.Semaphore, done: "asyncio.Future[Any]") -> None:
    places.release()
    if not done.cancelled():
        done.exception()  # so that asyncio does not complain that nobody looked
