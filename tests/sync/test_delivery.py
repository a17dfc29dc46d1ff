"""The probe goes on beside what follows a sync; a caller that awaits it gets its metrics, or why servers and trainer disagree."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vime.errors import WeightSyncError
from vime.sync.delivery import WeightDelivery

SENT = {"sync/num_servers": 1.0}


class Colocation:
    """The owner of the GPUs."""

    def __init__(self, *, shared: bool) -> None:
        self.shared, self.happened = shared, []

    async def send(self, send: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        self.happened.append("send")
        return await send()

    async def to_servers(self) -> None:
        self.happened.append("to servers")


class Delivery(WeightDelivery):
    """Sends nothing, and probes when it may."""

    def __init__(self, *, shared: bool = False, num_servers: int = 1) -> None:
        self._colocation: Any = Colocation(shared=shared)
        self._probing, self.may_answer, self.num_servers = None, asyncio.Event(), num_servers
        self.error: Exception | None = None

    async def send(self, version: int) -> dict[str, float]:
        return {"sync/num_servers": float(self.num_servers)}

    async def probe(self, version: int) -> dict[str, float]:
        await self.may_answer.wait()
        self._colocation.happened.append("probe")
        if self.error is not None:
            raise self.error
        return {"probe/num_servers": float(version)}


async def test_a_sync_is_over_before_its_probe_which_can_be_waited_for_twice():
    delivery = Delivery()
    assert await delivery.sync(1) == SENT and delivery._colocation.happened == ["send"]
    delivery.may_answer.set()
    assert await delivery.compared() == await delivery.compared() == {"probe/num_servers": 1.0}
    await delivery.sync(2)
    assert await delivery.compared() == {"probe/num_servers": 2.0}


async def test_servers_that_disagree_are_an_error_of_whoever_waits_and_of_the_next_sync():
    delivery = Delivery()
    delivery.error = WeightSyncError("they disagree")
    await delivery.sync(1)
    delivery.may_answer.set()
    for wait in (delivery.compared, lambda: delivery.sync(2)):
        with pytest.raises(WeightSyncError, match="they disagree"):
            await wait()
    assert delivery._colocation.happened == ["send", "probe"], "nothing is sent after it"


async def test_whoever_stops_waiting_does_not_end_the_probe():
    delivery = Delivery()
    await delivery.sync(1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(delivery.compared(), 0.01)
    delivery.may_answer.set()
    assert await delivery.compared() == {"probe/num_servers": 1.0}


async def test_on_shared_gpus_the_servers_have_their_turn_after_the_probe():
    delivery = Delivery(shared=True)
    delivery.may_answer.set()
    await delivery.sync(1)
    assert delivery._colocation.happened == ["send", "probe", "to servers"]


async def test_a_sync_that_reached_no_server_probes_none_and_the_end_of_a_run_ends_the_probe():
    none = Delivery()
    none.may_answer.set()
    await none.sync(1)
    none.num_servers = 0
    await none.sync(2)
    assert await none.compared() == {}
    await none.stop()
    delivery = Delivery()
    await delivery.sync(1)
    await delivery.stop()
    assert delivery._probing is not None and delivery._probing.cancelled()
