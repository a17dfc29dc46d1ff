"""Trainer and servers on the same GPUs: the order of events where they share them, and none where they do not."""

from typing import Any

import pytest

from vime.sync.colocation import Colocation


class Recorder:
    """Servers and trainer in one; remembers the calls that they got."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def sleep(self, *, keep_weights: bool) -> None:
        self.events.append("servers sleep" + (" and keep their weights" if keep_weights else ""))

    async def wake(self) -> None:
        self.events.append("servers wake")

    async def may_start(self) -> None:
        self.events.append("servers may start")

    async def offload(self, *, weights: bool) -> None:
        self.events.append("trainer leaves" if weights else "all but its weights leaves")

    async def onload(self) -> None:
        self.events.append("trainer returns")

    async def send(self) -> dict[str, float]:
        self.events.append("weights")
        return {"sync/num_servers": 1.0}


def turns_between(both: Any, *, shared: bool) -> Colocation:
    return Colocation(both, both, shared=shared)


async def two_steps(*, shared: bool) -> list[str]:
    """The first sync of a run, a step, and a checkpoint between generations."""
    recorder = Recorder()
    colocation = turns_between(recorder, shared=shared)
    async with colocation.awake():
        recorder.events.append("load a checkpoint")
    for _ in range(2):
        async with colocation.training():
            recorder.events.append("train")
        assert await colocation.send(recorder.send) == {"sync/num_servers": 1.0}
        recorder.events.append("probe")
        await colocation.to_servers()
        recorder.events.append("generate")
    async with colocation.awake():
        recorder.events.append("save")
    recorder.events.append("generate")
    return recorder.events


async def test_shared_gpus_change_hands_in_this_order():
    sync = ["all but its weights leaves", "weights", "all but its weights leaves", "servers wake", "probe"]
    step = ["train", *sync, "trainer leaves", "servers may start", "generate"]
    waking = ["trainer leaves", "servers wake", "servers may start"]
    assert await two_steps(shared=True) == [
        "load a checkpoint",
        *step,
        *["servers sleep", "trainer returns", *step],
        *["servers sleep and keep their weights", "trainer returns", "save", *waking, "generate"],
    ]


async def test_a_sync_in_the_servers_turn_begins_with_the_trainers():
    """After one that reached no server, say: until then the servers had the memory, to start again."""
    recorder = Recorder()
    colocation = turns_between(recorder, shared=True)
    await colocation.send(recorder.send)
    await colocation.to_servers()
    recorder.events.clear()
    await colocation.send(recorder.send)
    assert recorder.events[:4] == ["servers sleep", "trainer returns", "all but its weights leaves", "weights"]


async def test_nothing_is_told_to_parts_that_share_nothing():
    steps = ["train", "weights", "probe", "generate"]
    assert await two_steps(shared=False) == ["load a checkpoint", *steps, *steps, "save", "generate"]


async def test_the_servers_have_their_turn_back_when_saving_fails():
    recorder = Recorder()
    colocation = turns_between(recorder, shared=True)
    await colocation.to_servers()
    recorder.events.clear()
    with pytest.raises(OSError, match="disk full"):
        async with colocation.awake():
            raise OSError("disk full")
    assert recorder.events[-3:] == ["trainer leaves", "servers wake", "servers may start"]


async def test_the_servers_wake_when_the_trainer_cannot_come_back():
    class Crowded(Recorder):
        async def onload(self) -> None:
            raise MemoryError("no room")

    recorder = Crowded()
    colocation = turns_between(recorder, shared=True)
    await colocation.to_servers()
    with pytest.raises(MemoryError, match="no room"):
        async with colocation.awake():
            raise AssertionError("the trainer is not there")
    assert recorder.events[-3:] == ["trainer leaves", "servers wake", "servers may start"]
