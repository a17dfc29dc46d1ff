"""Who has the GPUs when: the order of events where trainer and servers share them, and none where they do not."""

import pytest

from vime.turns import Turns


class Recorder:
    """Servers and trainer at once; remembers what they were told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def sleep(self, *, keep_weights: bool) -> None:
        self.events.append("servers sleep" + (" and keep their weights" if keep_weights else ""))

    async def wake(self) -> None:
        self.events.append("servers wake")

    async def offload(self, *, weights: bool) -> None:
        self.events.append("trainer leaves" if weights else "optimizer leaves")

    async def onload(self) -> None:
        self.events.append("trainer returns")

    async def probe(self) -> dict[str, float]:
        self.events.append("probe")
        return {"probe/max_difference_cold": 0.0}


async def two_steps(*, shared: bool) -> list[str]:
    """The first sync of a run, a step, and a checkpoint between generations."""
    recorder = Recorder()
    turns = Turns(recorder, recorder, shared=shared)
    async with turns.trainer():
        recorder.events.append("load a checkpoint")
    for step in ("first", "second"):
        await turns.to_trainer()
        recorder.events.append(f"{step} weights")
        assert await turns.to_servers(probe=recorder.probe)
        recorder.events.append("generate")
    async with turns.trainer():
        recorder.events.append("save")
    recorder.events.append("generate")
    return recorder.events


async def test_shared_gpus_change_hands_in_this_order():
    handing_over = ["optimizer leaves", "servers wake", "probe", "trainer leaves", "generate"]
    assert await two_steps(shared=True) == [
        "load a checkpoint",
        *["first weights", *handing_over],
        *["servers sleep", "trainer returns", "second weights", *handing_over],
        *["servers sleep and keep their weights", "trainer returns", "save", "trainer leaves", "servers wake", "generate"],
    ]


async def test_nothing_is_told_to_parts_that_share_nothing():
    steps = ["first weights", "probe", "generate", "second weights", "probe", "generate"]
    assert await two_steps(shared=False) == ["load a checkpoint", *steps, "save", "generate"]


async def test_the_servers_have_their_turn_back_when_saving_fails():
    recorder = Recorder()
    turns = Turns(recorder, recorder, shared=True)
    await turns.to_servers(probe=recorder.probe)
    recorder.events.clear()
    with pytest.raises(OSError, match="disk full"):
        async with turns.trainer():
            raise OSError("disk full")
    assert recorder.events[-2:] == ["trainer leaves", "servers wake"]


async def test_the_servers_wake_when_the_trainer_cannot_come_back():
    class Crowded(Recorder):
        async def onload(self) -> None:
            raise MemoryError("no room")

    recorder = Crowded()
    turns = Turns(recorder, recorder, shared=True)
    await turns.to_servers(probe=recorder.probe)
    with pytest.raises(MemoryError, match="no room"):
        async with turns.trainer():
            raise AssertionError("the trainer is not there")
    assert recorder.events[-2:] == ["trainer leaves", "servers wake"]
