"""Calls of clients: one order, whatever the order of arrival, and each runs once."""

import asyncio
import itertools
from typing import Any

import pytest

from vime.errors import BadRequestError, ServerError
from vime.service.call_queue import Call, CallQueue, Failed, FullError


def noted(log: list[int], number: int) -> Any:
    async def work() -> int:
        await asyncio.sleep(0)
        log.append(number)
        return number

    return work


async def results(calls: CallQueue, ids: list[str]) -> list[Any]:
    found = [calls.get(each, owner="me") for each in ids]
    return [await call.result for call in found if isinstance(call, Call)]


@pytest.mark.parametrize("order", itertools.permutations([1, 2, 3]))
async def test_calls_run_once_in_the_order_of_their_numbers(order: tuple[int, ...]):
    calls, log = CallQueue(), list[int]()
    calls.begin("model", first=0)
    calls.in_line("model", 0, noted(log, 0), owner="me")
    ids = []
    for number in (*order, *order):
        ids.append(calls.in_line("model", number, noted(log, number), owner="me"))
        await asyncio.sleep(0)
    assert await results(calls, ids) == [*order, *order]
    assert log == [0, 1, 2, 3]
    calls.in_line("model", 2, noted(log, 9), owner="me")
    assert log == [0, 1, 2, 3]
    await calls.close()


async def test_a_failed_call_fails_alone():
    calls, log = CallQueue(), list[int]()
    calls.begin("model", first=1)

    def failing(error: Exception) -> Any:
        async def work() -> None:
            raise error

        return work

    errors = {1: BadRequestError("bad"), 2: ServerError("lost"), 3: KeyError("a defect")}
    ids = [calls.in_line("model", number, failing(error), owner="me") for number, error in errors.items()]
    last = calls.in_line("model", 4, noted(log, 4), owner="me")
    assert await results(calls, [last]) == [4]
    found = []
    for each in ids:
        with pytest.raises(Failed) as failed:
            await results(calls, [each])
        found.append(failed.value.category)
    assert found == ["user", "server", "server"]


async def test_models_do_not_wait_for_each_other_and_others_see_no_results():
    calls, log = CallQueue(), list[int]()
    for name in ("a", "b"):
        calls.begin(name, first=1)
    calls.in_line("a", 2, noted(log, 2), owner="me")  # waits for 1, which never comes
    own = calls.in_line("b", 1, noted(log, 1), owner="me")
    assert await results(calls, [own]) == [1]
    assert calls.get(own, owner="other") is None
    await calls.end("a")
    with pytest.raises(Failed, match="the model is gone"):
        await results(calls, ["a:2"])


async def test_a_flood_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vime.service.call_queue.MOST_WAITING", 2)
    calls, log = CallQueue(), list[int]()
    calls.begin("model", first=1)
    for number in (2, 3):
        calls.in_line("model", number, noted(log, number), owner="me")
    with pytest.raises(FullError):
        calls.in_line("model", 4, noted(log, 4), owner="me")
    calls.in_line("model", 1, noted(log, 1), owner="me")  # that which all wait for
    await results(calls, ["model:3"])
    last = calls.in_line("model", 4, noted(log, 4), owner="me")
    assert await results(calls, [last]) == [4]


async def test_a_call_beside_all_others_can_be_ended():
    calls, started = CallQueue(), asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    calls.alone("one", endless, owner="me")
    await started.wait()
    await calls.abandon("one")
    with pytest.raises(Failed, match="cancelled"):
        await results(calls, ["one"])


async def test_results_are_kept_up_to_a_number_those_that_were_fetched_go_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vime.service.call_queue.MOST_RESULTS", 3)
    calls, log = CallQueue(), list[int]()
    calls.begin("model", first=1)
    for number in range(1, 7):
        own = calls.in_line("model", number, noted(log, number), owner="me")
        await results(calls, [own])
        if number == 2 and (call := calls.get(own, owner="me")) is not None:
            call.was_fetched = True
    kept = [number for number in range(1, 7) if calls.get(f"model:{number}", owner="me") is not None]
    assert 2 not in kept and 6 in kept and len(kept) <= 4
    with pytest.raises(BadRequestError, match="its result is gone"):
        calls.in_line("model", 2, noted(log, 2), owner="me")
