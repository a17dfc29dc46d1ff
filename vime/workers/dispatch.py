"""Assigns work to the least loaded worker, and suspects of killing workers to workers of their own.

When a worker is lost, another takes its place and the work is run again. The work in whose code a worker died
(`vime.workers.black_box`) is run alone from then on. The worker's other work is run among all work once more. Work that has lost
`MAX_SHARED_LOSSES` workers is split into two halves, each in a worker of its own beside the others; a half that loses its worker
is split again, until the work that kills workers is alone: work that loses a worker which has no other work has failed. So
innocent work never has to queue behind a suspect, and as every loss makes a company smaller, the search ends.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.tasks import together

if TYPE_CHECKING:
    from vime.workers.ray_worker import RayWorker

logger = logging.getLogger(__name__)

LEAST_ROOM = 4
"""The number of separate workers that may run at a time; `num_workers` if that is larger."""


MAX_SHARED_LOSSES = 2
"""The number of shared workers that a piece of work may lose before it becomes a suspect."""


@dataclass(eq=False, kw_only=True, slots=True)
class Work:
    """A call of a worker's method, which is repeated when its worker is lost.

    Example: `Work(number=7, method="run_group", arguments={"prompt": …, "slot": 3, …})`.
    """

    number: int
    method: str
    arguments: dict[str, Any]
    heard: dict[int, Any] = field(default_factory=dict)
    """Finished rollouts that its worker has reported, by member."""
    num_losses: int = 0
    is_deadly: bool = False
    """True if it has lost a worker that had no other work."""

    def resampled(self, members: Collection[int], *, version: int) -> None:
        """Forgets rollouts of a group that are sampled again; the rest has no tokens older than `version`."""
        self.heard = {member: rollout for member, rollout in self.heard.items() if member not in members}
        progress = self.arguments["progress"]
        progress = progress.without(members, version=version) if progress is not None else None
        self.arguments |= {"version": version, "progress": progress}


def companies(lost: Sequence[Work], *, culprit: int) -> list[list[Work]]:
    """Groups the suspects of a lost worker into companies; each company gets a worker of its own, and other work is left out.

    `culprit` is the number of the work in whose code the worker died, 0 if there was none.
    """
    for work in lost:
        work.num_losses += 1
    named = [work for work in lost if work.number == culprit]
    suspects = [work for work in lost if work.number != culprit and work.num_losses >= MAX_SHARED_LOSSES]
    half = (len(suspects) + 1) // 2
    return [company for company in (named, suspects[:half], suspects[half:]) if company]


class WorkerLost(Exception):
    """The worker died or got stuck under a piece of work."""


class Station:
    """One worker with its work; the worker that replaces it has another station."""

    def __init__(self, worker: "RayWorker", company: "Company | None" = None) -> None:
        self.worker, self.company = worker, company
        self.work: set[Work] = set()
        self.watch: asyncio.Task[None] | None = None
        self.judgement: asyncio.Task[None] | None = None
        """Decides where the work of the lost worker is run again; begun as soon as the worker is lost."""

    def close(self) -> None:
        """Ends the worker."""
        if self.watch is not None:
            self.watch.cancel()
        self.worker.kill()


class Company:
    """Suspected work that shares a worker apart from all other work."""

    def __init__(self, members: list[Work]) -> None:
        self.members = set(members)
        self.opening: asyncio.Task[Station] | None = None

    @property
    def station(self) -> Station | None:
        """The station of the company's worker, None while there is no worker."""
        done = self.opening is not None and self.opening.done() and not self.opening.cancelled()
        return self.opening.result() if self.opening is not None and done and self.opening.exception() is None else None


class Dispatcher:
    """The workers and their work; `watch(station)` supervises a worker and calls `lost` if it is stuck."""

    def __init__(
        self,
        make: Callable[[int], "RayWorker"],
        *,
        num_workers: int,
        start_seconds: float,
        watch: Callable[[Station], Coroutine[Any, Any, None]],
    ) -> None:
        self._make, self._watch, self._start_seconds = make, watch, start_seconds
        self._num_workers = num_workers
        self._shared: list[Station] = []
        self._running: set[Work] = set()
        self._companies: dict[Work, Company] = {}
        self._room = asyncio.Semaphore(max(LEAST_ROOM, num_workers))
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Starts the workers side by side and waits until they answer."""
        self._shared = [self._watched(Station(self._make(index))) for index in range(self._num_workers)]
        await asyncio.wait_for(together(station.worker.started() for station in self._shared), self._start_seconds)

    def stations(self) -> list[Station]:
        """The stations of all workers: first the shared ones, then the separate ones."""
        apart = [company.station for company in dict.fromkeys(self._companies.values())]
        return [*self._shared, *(station for station in apart if station is not None)]

    def find(self, method: str, **arguments: Any) -> tuple[Station, Work] | None:
        """The work with this method and these arguments among others, and where it is; None if no worker has it."""
        for station in self.stations():
            for work in station.work:
                if work.method == method and arguments.items() <= work.arguments.items():
                    return station, work
        return None

    async def run(self, method: str, arguments: dict[str, Any], *, again: Callable[[Work], None] = lambda work: None) -> Any:
        """Returns a worker's result; `again` gets the work before each repetition. Raises WorkerLost if it kills workers."""
        work = Work(number=next(self._numbers), method=method, arguments=arguments)
        self._running.add(work)
        try:
            while True:
                company = self._companies.get(work)
                station = (
                    await self._opened(company) if company is not None else min(self._shared, key=lambda each: len(each.work))
                )
                station.work.add(work)
                try:
                    return await station.worker.run(work)
                except WorkerLost as error:
                    await asyncio.shield(self.lost(station, str(error)))
                    if work.is_deadly or not self._shared:
                        raise
                finally:
                    station.work.discard(work)
                again(work)
        finally:
            self._running.discard(work)
            self._leave(work)

    def lost(self, station: Station, reason: str) -> "asyncio.Task[None]":
        """Puts another worker in the place of one that died or is stuck, and returns the judgement over its work."""
        if station.judgement is None:
            logger.warning("%s", reason.splitlines()[0])
            station.close()
            suspects = list(station.company.members if station.company is not None else station.work)
            station.judgement = asyncio.ensure_future(self._judge(station, suspects))
            if station in self._shared:
                index = self._shared.index(station)
                self._shared[index] = self._watched(Station(self._make(index)))
        return station.judgement

    def stop(self) -> None:
        """Ends the workers."""
        stations, self._shared = self.stations(), []
        for company in list(self._companies.values()):
            self._close(company)
        for station in stations:
            station.close()

    async def _judge(self, station: Station, lost: list[Work]) -> None:
        if station.company is not None and len(lost) == 1:
            lost[0].is_deadly = True
            return
        culprit = await station.worker.culprit()
        lost = [work for work in lost if work in self._running]  # not what was cancelled meanwhile
        for work in lost:
            self._leave(work)
        for members in companies(lost, culprit=culprit):
            logger.warning("%d of %d pieces of work go on in a worker of their own", len(members), len(lost))
            self._companies |= dict.fromkeys(members, Company(members))

    async def _opened(self, company: Company) -> Station:
        """The place of a company, whose first member has its worker started. Raises WorkerLost if it does not start."""
        if company.opening is None:
            company.opening = asyncio.ensure_future(self._open(company))
        return await asyncio.shield(company.opening)

    async def _open(self, company: Company) -> Station:
        await self._room.acquire()
        worker = self._make(len(self.stations()))
        try:
            await asyncio.wait_for(worker.started(), self._start_seconds)
        except BaseException as error:  # raised again, or as what it means: whatever ends the start, nothing of it stays
            worker.kill()
            self._room.release()
            if isinstance(error, (WorkerLost, asyncio.TimeoutError)):
                raise WorkerLost(f"a rollout worker of its own did not start: {error!r}") from error
            raise
        return self._watched(Station(worker, company))

    def _watched(self, station: Station) -> Station:
        station.watch = asyncio.ensure_future(self._watch(station))
        return station

    def _leave(self, work: Work) -> None:
        """Removes work from its company, because it has ended or is run elsewhere; an empty company is closed."""
        company = self._companies.pop(work, None)
        if company is not None:
            company.members.discard(work)
            if not company.members:
                self._close(company)

    def _close(self, company: Company) -> None:
        opening, company.opening = company.opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()  # which comes too late if it is just done
        opening.add_done_callback(self._end)

    def _end(self, opening: "asyncio.Task[Station]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()
            self._room.release()
