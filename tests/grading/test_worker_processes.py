"""Callers of graders wait for a process; nothing is queued for those who gave up."""

import asyncio
import threading
from typing import Any

import pytest

from vime.grading.worker_processes import WorkerProcesses


async def test_no_more_is_handed_over_than_processes_take_and_cancelled_callers_leave_nothing(monkeypatch: pytest.MonkeyPatch):
    workers, release, begun = WorkerProcesses("no.such.module", num_workers=2), threading.Event(), list[int]()

    def call(request: dict[str, Any], seconds: float) -> str:
        begun.append(request["number"])
        assert release.wait(60)
        return str(request["number"])

    monkeypatch.setattr(workers, "_call", call)
    calls = [asyncio.create_task(workers.call({"number": number}, seconds=6)) for number in range(100)]
    while len(begun) < 2:
        await asyncio.sleep(0.01)
    assert workers._threads.num_queued == 0
    for given_up in calls[1:90]:
        given_up.cancel()
    await asyncio.wait(calls[1:90])
    release.set()
    answers = await asyncio.gather(calls[0], *calls[90:])
    assert answers == ["0", *map(str, range(90, 100))]
    assert sorted(begun) == [0, 1, *range(90, 100)]
