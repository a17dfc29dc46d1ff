"""Cancelled tasks end, even if a cancellation is lost on the way."""

import asyncio

import pytest

from vime import tasks
from vime.tasks import cancel


async def test_a_loop_whose_wait_forgets_a_cancellation_ends_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_SECONDS", 0.01)
    here = asyncio.Event()
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            turns += 1
            here.set()
            await asyncio.wait_for(answer if turns == 1 else asyncio.sleep(60), 60)

    watching = asyncio.create_task(watch())
    await here.wait()
    await asyncio.sleep(0)
    answer.set_result(None)  # in the same turn of the event loop as the cancellation
    await asyncio.wait_for(cancel([watching]), 10)
    assert watching.cancelled()


async def test_how_the_cancelled_end_is_of_no_interest():
    async def fail() -> None:
        raise OSError("mine")

    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await cancel([failed, asyncio.create_task(asyncio.sleep(60))])
