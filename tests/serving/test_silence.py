"""A wait that is ended for silence, and one that somebody else ends at the same moment."""

import asyncio

import pytest

from vime.serving.silence import Silence, Silent


async def listen(silences: list[Silence]) -> None:
    with Silence(0.0, is_explained=bool) as silence:
        silences.append(silence)
        await asyncio.sleep(60)


async def test_a_silent_wait_is_ended():
    with pytest.raises(Silent):
        await listen([])


async def test_a_wait_that_is_cancelled_as_it_becomes_silent_stays_cancelled():
    silences: list[Silence] = []
    task = asyncio.create_task(listen(silences))
    while not silences:
        await asyncio.sleep(0)
    silences[0]._look()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_after_a_wait_that_was_ended_the_task_goes_on():
    for _ in range(3):
        with pytest.raises(Silent):
            await listen([])
    await asyncio.sleep(0.01)
