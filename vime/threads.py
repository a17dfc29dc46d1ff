"""Blocking work in threads: in a bounded number of them, which callers wait for, or in one that the caller brings.

A caller that is cancelled while it waits leaves nothing.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
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
        work = asyncio.get_running_loop().run_in_executor(self._executor, raising, function, *arguments)
        work.add_done_callback(lambda done: _leave(places, done))
        return await asyncio.shield(work)

    def _places_of_this_loop(self) -> asyncio.Semaphore:
        for loop in list(self._places):
            if loop.is_closed():
                self._places.pop(loop, None)
        return self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._num_threads))


def raising(function: Callable[..., T], *arguments: object, **named: object) -> T:
    """The result of a call, for a thread: StopIteration, with which no future can end, becomes a RuntimeError."""
    try:
        return function(*arguments, **named)
    except StopIteration as raised:
        raise RuntimeError(f"StopIteration: {raised}") from raised


def handed_over(function: Callable[[], Any]) -> tuple[Callable[[], None], "asyncio.Future[Any]"]:
    """A call for any thread, and the future that gets its result or its error in this event loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            method(value)

    def call() -> None:
        try:
            value, method = raising(function), done.set_result
        except Exception as raised:  # handed over to the coroutine that waits
            value, method = raised, done.set_exception
        except BaseException as raised:  # so is what would end the thread alone, as an error that ends no program
            value, method = RuntimeError(f"{type(raised).__name__}: {raised}"), done.set_exception
        with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            loop.call_soon_threadsafe(settle, method, value)

    return call, done


async def in_own_thread(function: Callable[..., T], *arguments: object) -> T:
    """The result of a call that may take long, in a thread of its own; a caller that is cancelled leaves it to itself."""
    call, done = handed_over(partial(function, *arguments))
    threading.Thread(target=call, daemon=True, name=getattr(function, "__name__", "call")).start()
    return await done


def _leave(places: asyncio.Semaphore, done: "asyncio.Future[Any]") -> None:
    places.release()
    if not done.cancelled():
        done.exception()  # so that asyncio does not complain that nobody looked
