"""Calls of clients: one order, whatever the order of arrival, each has its effect once, also if the service ends in between."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from vime.errors import BadRequestError, ConfigError, ServerError
from vime.service.call_queue import MOST_LOSSES, CallQueue, FullError, Interrupted, Planned, Work
from vime.service.journal import JSON, SERVER, USER, Entry, Journal, Outcome


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path)) as opened:
        yield opened


def noted(log: list[int], number: int) -> Work:
    async def work() -> int:
        await asyncio.sleep(0)
        log.append(number)
        return number

    return work


def failing(error: Exception) -> Work:
    async def work() -> None:
        raise error

    return work


def add(calls: CallQueue, line: str, number: int, work: Work, **plan: Any) -> str:
    planned = Planned(id=f"{line}:{number}", line=line, number=number, work=work, **plan)
    return calls.add(planned, owner="me", route="test", body=b"body")


async def found(calls: CallQueue, id: str) -> Outcome:
    outcome = await calls.outcome(id, owner="me", seconds=10)
    assert outcome is not None
    return outcome


async def results(calls: CallQueue, ids: list[str]) -> list[Any]:
    return [orjson.loads((await found(calls, each)).data) for each in ids]


@pytest.mark.parametrize("order", itertools.permutations([1, 2, 3]))
async def test_calls_run_once_in_the_order_of_their_numbers(order: tuple[int, ...], journal: Journal):
    calls, log = CallQueue(journal), list[int]()
    calls.begin("model", first=0)
    add(calls, "model", 0, noted(log, 0))
    ids = []
    for number in (*order, *order):
        ids.append(add(calls, "model", number, noted(log, number)))
        await asyncio.sleep(0)
    assert await results(calls, ids) == [*order, *order]
    assert log == [0, 1, 2, 3]
    add(calls, "model", 2, noted(log, 9))
    assert log == [0, 1, 2, 3]
    await calls.close()


async def test_a_failed_call_fails_alone(journal: Journal):
    calls, log = CallQueue(journal), list[int]()
    calls.begin("model", first=1)
    errors = {1: BadRequestError("bad"), 2: ServerError("lost"), 3: KeyError("a defect")}
    ids = [add(calls, "model", number, failing(error)) for number, error in errors.items()]
    last = add(calls, "model", 4, noted(log, 4))
    assert await results(calls, [last]) == [4]
    assert [(await found(calls, each)).kind for each in ids] == [USER, SERVER, SERVER]


async def test_models_do_not_wait_for_each_other_and_others_see_no_results(journal: Journal):
    calls, log = CallQueue(journal), list[int]()
    for name in ("a", "b"):
        calls.begin(name, first=1)
    early = add(calls, "a", 2, noted(log, 2))  # waits for 1, which never comes
    own = add(calls, "b", 1, noted(log, 1))
    assert await results(calls, [own]) == [1]
    with pytest.raises(LookupError):
        await calls.outcome(own, owner="other", seconds=0)
    asking = asyncio.create_task(found(calls, early))
    await asyncio.sleep(0)
    await calls.end("a")
    assert (await asking).data == b"the model is gone"


async def test_a_flood_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch, journal: Journal):
    monkeypatch.setattr("vime.service.call_queue.MOST_WAITING", 2)
    calls, log = CallQueue(journal), list[int]()
    calls.begin("model", first=1)
    for number in (2, 3):
        add(calls, "model", number, noted(log, number))
    with pytest.raises(FullError):
        add(calls, "model", 4, noted(log, 4))
    add(calls, "model", 1, noted(log, 1))  # that which all wait for
    await results(calls, ["model:3"])
    assert await results(calls, [add(calls, "model", 4, noted(log, 4))]) == [4]
    monkeypatch.setattr("vime.service.call_queue.MOST_WAITING_BYTES", 6)
    add(calls, "model", 6, noted(log, 6))
    with pytest.raises(FullError, match="4 bytes already"):
        add(calls, "model", 7, noted(log, 7))
    await results(calls, [add(calls, "model", 5, noted(log, 5)), "model:6"])


async def test_a_call_beside_all_others_can_be_ended(journal: Journal):
    calls, started = CallQueue(journal), asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    calls.add(Planned(id="one", work=endless), owner="me", route="test", body=b"")
    await started.wait()
    await calls.abandon("one", owner="other")
    await calls.abandon("one", owner="me")
    assert b"cancelled" in (await found(calls, "one")).data


async def test_results_are_kept_up_to_a_number_those_that_were_fetched_go_first(
    monkeypatch: pytest.MonkeyPatch, journal: Journal
):
    monkeypatch.setattr("vime.service.call_queue.MOST_RESULTS", 4)
    calls, log = CallQueue(journal), list[int]()
    calls.begin("model", first=1)
    for number in range(1, 8):
        own = add(calls, "model", number, noted(log, number))
        while (journal.outcome(own, owner="nobody") is None and len(log) < number) or own in calls._calls:
            await asyncio.sleep(0)
        if number == 2:
            await found(calls, own)
    kept = [number for number in range(1, 8) if journal.has(f"model:{number}")]
    assert 2 not in kept and 7 in kept and len(kept) <= 4
    with pytest.raises(BadRequestError, match="its result is gone"):
        add(calls, "model", 2, noted(log, 2))


class Weights:
    """A model whose weights are the numbers of the calls that have changed them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def plan(self, number: int) -> Planned:
        return Planned(
            id=f"model:{number}", line="model", number=number, work=noted(self.numbers, number), repeated_after=(JSON, USER)
        )


def restored(journal: Journal, weights: Weights) -> CallQueue:
    """What a service does with the journal when it starts again."""
    calls = CallQueue(journal)
    for line, next, _ in journal.lines():
        calls.resume(line, next=next, repeated=[weights.plan(entry.number) for entry in journal.to_repeat(line)])
    for entry in journal.open_calls():
        calls.restore(entry, weights.plan(entry.number), num_bytes=1)
    return calls


@pytest.mark.parametrize("saved", [0, 2])
@pytest.mark.parametrize("num_ticks", range(1, 12))
async def test_a_queue_that_ends_at_any_moment_goes_on_where_it_was(num_ticks: int, saved: int, tmp_path: Path):
    weights = Weights()
    with closing(Journal(tmp_path)) as journal:
        calls = CallQueue(journal)
        calls.begin("model", first=1)
        for number in (2, 1, 4, 3):
            calls.add(weights.plan(number), owner="me", route="test", body=b"body")
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        await calls.close()
        num_done = len(weights.numbers)
    with closing(Journal(tmp_path)) as journal:
        kept = min(saved, num_done, journal.lines()[0][1] - 1)
        journal.forget_changes("model", until=kept)
        weights.numbers = weights.numbers[:kept]  # what a saved state has
        calls = restored(journal, weights)
        assert await results(calls, [f"model:{number}" for number in range(1, 5)]) == [1, 2, 3, 4]
        again = calls.add(weights.plan(3), owner="me", route="test", body=b"body")
        assert await results(calls, [again]) == [3]
        await results(calls, [calls.add(weights.plan(5), owner="me", route="test", body=b"body")])
        assert weights.numbers == [1, 2, 3, 4, 5]
        await calls.close()


async def test_a_call_that_costs_the_trainer_again_and_again_fails(tmp_path: Path):
    for attempt in range(MOST_LOSSES):
        with closing(Journal(tmp_path)) as journal:
            calls = CallQueue(journal)
            if attempt == 0:
                calls.begin("model", first=1)
                add(calls, "model", 1, failing(Interrupted("out of memory")))
            else:
                ((line, next, _),) = journal.lines()
                calls.resume(line, next=next, repeated=[])
                (entry,) = journal.open_calls()
                plan = Planned(id=entry.id, line=line, number=1, work=failing(Interrupted("out of memory")))
                calls.restore(entry, plan, num_bytes=1)
            for _ in range(5):
                await asyncio.sleep(0)
            await calls.close()
    with closing(Journal(tmp_path)) as journal:
        outcome = journal.outcome("model:1", owner="me")
        assert outcome is not None and outcome.kind == SERVER and b"out of memory" in outcome.data
        assert not journal.open_calls() and journal.lines()[0][1] == 2


def test_one_folder_has_one_service(tmp_path: Path, journal: Journal):
    with pytest.raises(ConfigError, match="another service"):
        Journal(tmp_path)


def test_a_session_goes_with_all_that_is_its_own(journal: Journal):
    for session in ("a", "ab"):
        journal.add_session(session, "me", "null")
        journal.note_sampler(f"{session}:sample:0", "{}")
        journal.begin(f"{session}:train:0", first=0)
        journal.add(Entry(id=f"{session}:train:0:0", owner="me", route="r", line="", number=0, num_losses=0), b"")
    journal.remove_session("a")
    found = [journal.sessions(), journal.samplers(), journal.lines(), journal.open_calls()]
    assert [len(each) for each in found] == [1, 1, 1, 1] and journal.has("ab:train:0:0")
