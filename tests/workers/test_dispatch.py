"""Work that kills its worker beside work that does not, in virtual time: what it costs the others, and that every search ends."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.virtual_time import run
from vime.types import Rollout, StopReason
from vime.workers.dispatch import Dispatcher, Station, Work, WorkerLost
from vime.workers.group_run import GroupProgress

START_SECONDS, GROUP_SECONDS, DEADLY_SECONDS = 10.0, 60.0, 20.0
JUDGEMENT_SECONDS = 0.01
Name = Callable[[Work, list[Work]], int]
"""The work that the black box names when some work kills its worker, beside these others."""


def rightly(killer: Work, others: list[Work]) -> int:
    return killer.number


def nobody(killer: Work, others: list[Work]) -> int:
    return 0


class SimulatedWorker:
    """Starts in `START_SECONDS`; deadly work ends it after `DEADLY_SECONDS`, other work takes `GROUP_SECONDS`."""

    def __init__(self, name: Name) -> None:
        self.died: asyncio.Event = asyncio.Event()
        self._born = asyncio.get_running_loop().time()
        self._name, self._culprit, self._works = name, 0, list[Work]()

    async def started(self) -> None:
        await asyncio.sleep(max(0.0, self._born + START_SECONDS - asyncio.get_running_loop().time()))

    async def run(self, work: Work) -> Any:
        self._works.append(work)
        dying = asyncio.ensure_future(self.died.wait())
        try:
            await self.started()
            seconds = DEADLY_SECONDS if work.arguments["deadly"] else GROUP_SECONDS
            done, _ = await asyncio.wait([dying], timeout=seconds)
            if not done and work.arguments["deadly"]:
                self._culprit = self._name(work, self._works)
                self.died.set()
            if done or work.arguments["deadly"]:
                raise WorkerLost("gone")
            return "answered"
        finally:
            dying.cancel()

    async def culprit(self) -> int:
        await asyncio.sleep(JUDGEMENT_SECONDS)
        return self._culprit

    def kill(self) -> None:
        self.died.set()


class Simulation:
    """A dispatcher of simulated workers."""

    def __init__(self, name: Name, *, num_workers: int = 1) -> None:
        self._name = name
        self.alive: list[SimulatedWorker] = []
        self.num_started = 0
        self.dispatcher = Dispatcher(cast(Any, self._make), num_workers=num_workers, start_seconds=300.0, watch=self._watch)

    async def outcome(self, *, deadly: bool) -> str:
        """Answered, or lost for good."""
        try:
            return await self.dispatcher.run("run_group", {"deadly": deadly})
        except WorkerLost:
            return "lost"

    async def outcomes(self, kinds: list[bool]) -> list[str]:
        """The outcomes of work started at one time; at the end only the shared workers are left, and none has work."""
        await self.dispatcher.start()
        found = await asyncio.gather(*[self.outcome(deadly=deadly) for deadly in kinds])
        await asyncio.sleep(0.1)
        stations = self.dispatcher.stations()
        assert [station.work for station in stations] == [set()] * len(stations)
        assert {worker for worker in self.alive if not worker.died.is_set()} == {station.worker for station in stations}
        self.dispatcher.stop()
        return found

    def _make(self, index: int) -> SimulatedWorker:
        self.num_started += 1
        self.alive.append(SimulatedWorker(self._name))
        return self.alive[-1]

    async def _watch(self, station: Station) -> None:
        return


def test_work_is_found_where_it_is_and_forgets_what_is_sampled_again():
    async def main() -> None:
        simulation = Simulation(rightly, num_workers=2)
        dispatcher = simulation.dispatcher
        await dispatcher.start()
        old = GroupProgress(prompt_index=3, version=4, finished={0: rollout(0), 1: rollout(1)})
        runs = [
            asyncio.ensure_future(dispatcher.run("run_group", {"deadly": False, "slot": slot, "version": 4, "progress": old}))
            for slot in range(4)
        ]
        await asyncio.sleep(1)
        assert dispatcher.find("run_group", slot=4) is None and dispatcher.find("run_item", slot=3) is None
        found = dispatcher.find("run_group", slot=3)
        assert found is not None and found[1] in found[0].work and found[1].arguments["slot"] == 3
        work = found[1]
        work.heard = {1: rollout(1), 2: rollout(2)}
        work.resampled((0, 1), version=7)
        assert list(work.heard) == [2] and work.arguments["version"] == 7
        assert work.arguments["progress"] == GroupProgress(prompt_index=3, version=7) and len(old.finished) == 2
        await asyncio.gather(*runs)
        assert dispatcher.find("run_group", slot=3) is None
        dispatcher.stop()

    run(main())


def rollout(member: int) -> Rollout:
    return Rollout(rollout_id=member, group_index=0, stop_reason=StopReason.ANSWERED)


def expected(kinds: list[bool]) -> list[str]:
    return ["lost" if deadly else "answered" for deadly in kinds]


def test_one_deadly_prompt_of_32_costs_one_worker_at_most_two_starts_and_40_seconds():
    async def main() -> list[str]:
        simulation = Simulation(rightly)
        await simulation.dispatcher.start()

        async def prompt(number: int) -> str:
            """The producer draws another prompt for one that is given up."""
            first = await simulation.outcome(deadly=number == 17)
            return first if first == "answered" else f"lost, then {await simulation.outcome(deadly=False)}"

        return await asyncio.gather(*[prompt(number) for number in range(32)])

    found, seconds = run(main())
    assert sorted(set(found)) == ["answered", "lost, then answered"] and found.count("answered") == 31
    undisturbed = START_SECONDS + GROUP_SECONDS
    assert seconds <= undisturbed + 40 + 2 * START_SECONDS


def test_if_the_black_box_names_nobody_the_search_takes_as_many_steps_as_a_company_has_halves():
    kinds = [number == 17 for number in range(32)]
    simulation = Simulation(nobody)
    found, seconds = run(simulation.outcomes(kinds))
    assert found == expected(kinds)
    num_steps = 2 + 5 + 1  # two losses among others, five halvings, and the one alone
    assert seconds <= START_SECONDS + num_steps * (DEADLY_SECONDS + START_SECONDS) + GROUP_SECONDS + 1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_black_box_says_every_deadly_prompt_is_found_and_no_other_is_given_up(seed: int):
    generator = random.Random(seed)
    kinds = [generator.random() < generator.choice([0.05, 0.3, 1.0]) for _ in range(generator.choice([1, 2, 7, 40]))]
    share = generator.choice([0.0, 0.5, 1.0])

    def anybody(killer: Work, others: list[Work]) -> int:
        return killer.number if generator.random() < share else generator.choice([0, 999, *(work.number for work in others)])

    simulation = Simulation(anybody, num_workers=generator.choice([1, 2, 4]))
    found, _ = run(simulation.outcomes(kinds))
    assert found == expected(kinds)
    assert simulation.num_started <= 4 + 4 * len(kinds) + sum(kinds)


def test_work_lost_twice_by_others_faults_goes_on_apart_and_is_answered():
    async def main() -> str:
        simulation = Simulation(nobody)
        await simulation.dispatcher.start()
        running = asyncio.ensure_future(simulation.outcome(deadly=False))
        for _ in range(2):
            await asyncio.sleep(30)
            simulation.dispatcher.lost(simulation.dispatcher.stations()[0], "stuck")
        return await running

    assert run(main())[0] == "answered"


def test_cancelled_work_that_runs_apart_takes_its_worker_along():
    async def main() -> list[bool]:
        simulation = Simulation(rightly)
        await simulation.dispatcher.start()
        running = asyncio.ensure_future(simulation.outcome(deadly=True))
        await asyncio.sleep(DEADLY_SECONDS + 1)
        starting = len(simulation.alive) == 3
        running.cancel()
        await asyncio.sleep(60)
        return [starting, *(worker.died.is_set() for worker in simulation.alive)]

    assert run(main())[0] == [True, True, False, True]


def test_what_a_lost_worker_had_told_is_known_when_its_work_is_run_again():
    async def main() -> Work:
        simulation, seen = Simulation(rightly), []
        await simulation.dispatcher.start()
        arguments = {"deadly": False}
        running = asyncio.ensure_future(simulation.dispatcher.run("run_group", arguments, again=seen.append))
        await asyncio.sleep(5)
        (work,) = simulation.dispatcher.stations()[0].work
        work.heard[3] = "done"
        simulation.dispatcher.lost(simulation.dispatcher.stations()[0], "stuck")
        await running
        return seen[0]

    assert run(main())[0].heard == {3: "done"}


def test_work_that_is_cancelled_while_it_is_judged_keeps_no_worker():
    async def main() -> list[bool]:
        simulation = Simulation(nobody)
        await simulation.dispatcher.start()
        running = [asyncio.ensure_future(simulation.outcome(deadly=False)) for _ in range(3)]
        for _ in range(2):
            await asyncio.sleep(30)
            simulation.dispatcher.lost(simulation.dispatcher.stations()[0], "stuck")
        await asyncio.sleep(JUDGEMENT_SECONDS / 2)
        running[0].cancel()
        await asyncio.wait(running)
        await asyncio.sleep(1)
        return [worker.died.is_set() for worker in simulation.alive]

    assert run(main())[0].count(False) == 1
