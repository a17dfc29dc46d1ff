"""Blocking work waits for its own threads, holds up no other work, and is not done for callers that gave up."""

import asyncio
import threading
from typing import Any

import pytest

from vime.threads import Threads, in_own_thread


async def test_while_all_threads_are_taken_others_wait_and_asyncios_own_are_free():
    threads, release, begun = Threads("test", num_threads=3), threading.Event(), list[int]()

    def block(number: int) -> int:
        begun.append(number)
        assert release.wait(60)
        return number

    calls = [asyncio.create_task(threads.run(block, number)) for number in range(50)]
    while len(begun) < 3:
        await asyncio.sleep(0.01)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "quick"), 30) == "quick"
    assert threads.num_queued == 0
    for given_up in calls[2:40]:
        given_up.cancel()
    await asyncio.wait(calls[2:40])
    assert len(begun) == 3
    release.set()
    assert await asyncio.gather(*calls[:2], *calls[40:]) == [0, 1, *range(40, 50)]
    assert sorted(begun) == [0, 1, 2, *range(40, 50)]


async def test_what_the_function_raises_reaches_the_caller_and_frees_the_thread():
    threads = Threads("test", num_threads=1)
    for _ in range(2):
        with pytest.raises(ValueError):
            await threads.run(int, "x")


async def test_stop_iteration_which_no_future_takes_reaches_the_caller_too():
    nothing: Any = iter(())
    for call in (Threads("test", num_threads=1).run(next, nothing), in_own_thread(next, nothing)):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(call, 30)
