"""Turns at one thing: an owner with few calls is not behind another's many."""

import asyncio

from vime.service.turns import Turns


async def test_a_flood_of_one_owner_delays_another_by_one_turn():
    turns, log = Turns(), list[str]()

    async def use(owner: str) -> None:
        async with turns.turn(owner):
            await asyncio.sleep(0)
            log.append(owner)

    flood = [asyncio.create_task(use("flood")) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(5):
        before = len(log)
        await use("few")
        assert log[before:].count("flood") <= 2  # that at work when it asked, and one more once it had its turn
    await asyncio.gather(*flood)
    assert log.count("flood") == 20


async def test_a_call_that_is_cancelled_loses_no_turn():
    turns, log = Turns(), list[int]()

    async def use(number: int) -> None:
        async with turns.turn("one"):
            await asyncio.sleep(0)
            log.append(number)

    tasks = [asyncio.create_task(use(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    for _ in range(2):
        await asyncio.sleep(0)
    tasks[2].cancel()  # now it may be its turn
    await asyncio.wait(tasks)
    assert log[0] == 0 and log[-1] == 3
    await asyncio.wait_for(use(5), 1)
