"""An ended run leaves parts to the next one, which takes what it would start itself and ends the rest."""

import asyncio
from functools import partial

from vime.processes.spare import Spare


async def ended(parts: list[str], name: str) -> None:
    parts.append(name)


def test_a_part_is_taken_once_and_by_its_kind_and_key():
    spare, gone = Spare(keeps=True), []
    assert spare.put("servers", "--seed 0", "server", end=partial(ended, gone, "server"))
    assert spare.take("servers", "--seed 1") is None and spare.take("ranks", "--seed 0") is None
    assert spare.take("servers", "--seed 0") == "server"
    assert spare.take("servers", "--seed 0") is None
    asyncio.run(spare.end())
    assert gone == []


def test_what_nobody_took_is_ended_by_its_kind_or_all_together():
    spare, gone = Spare(keeps=True), []
    for kind, key in (("servers", "a"), ("servers", "b"), ("ranks", "a")):
        spare.put(kind, key, key, end=partial(ended, gone, f"{kind} {key}"))
    assert spare.take("servers", "a") == "a"
    asyncio.run(spare.end("servers"))
    assert gone == ["servers b"]
    asyncio.run(spare.end())
    asyncio.run(spare.end())
    assert gone == ["servers b", "ranks a"]


def test_one_that_keeps_nothing_leaves_the_part_to_its_owner():
    spare, gone = Spare(), []
    assert not spare.put("servers", "a", "server", end=partial(ended, gone, "server"))
    asyncio.run(spare.end())
    assert spare.take("servers", "a") is None and gone == []
