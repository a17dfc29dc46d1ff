"""Batches of rollouts whose groups start when the servers hold the weights of a step; what keeps these away ends the wait."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from vime.batches import Rollouts
from vime.errors import WeightSyncError
from vime.preflight.compose import compose_run
from vime.rollout.producer import Producer


class NoGroups:
    """A source and a runner; no group begins in these tests."""

    def next(self) -> Any:
        raise AssertionError("no prompt is needed before the weights are there")


def make() -> Rollouts:
    config = compose_run(["+method=memagent", "mode=plan", "rollout.max_staleness=1"]).config
    parts: Any = NoGroups()
    bar: Any = nullcontext(SimpleNamespace(advance=None))
    return Rollouts(config, parts, parts, journal=None, state=None, version=0, bar=lambda *_: bar)


async def test_weights_that_do_not_arrive_end_the_wait_for_a_batch():
    async def delivered() -> None:
        await asyncio.sleep(0)
        raise WeightSyncError("the server got other bytes")

    batches = make()
    batches.begin(1, num_left=3, delivered=delivered())
    with pytest.raises(WeightSyncError, match="other bytes"):
        await asyncio.wait_for(batches.next(1), 10)
    await batches.stop()


async def test_groups_of_two_steps_start_in_the_order_of_the_steps(monkeypatch: pytest.MonkeyPatch):
    started: list[tuple[int, int | None]] = []
    monkeypatch.setattr(
        Producer, "set_version", lambda self, version, *, num_batches_left: started.append((version, num_batches_left))
    )
    first, batches = asyncio.Event(), make()
    batches.begin(1, num_left=3, delivered=first.wait())
    batches.begin(2, num_left=2, delivered=asyncio.sleep(0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert started == []
    first.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert started == [(1, 3), (2, 2)]
    await batches.stop()
