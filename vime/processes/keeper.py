"""Keeps one program alive: launches it, watches it, launches it again, and gives it up after too many faults.

By itself a program is ready once it is healthy. A program that needs more has a subclass, which overrides `has_started` (a
further condition of a start), `prepare` (work to do before the program is ready) and `until_fault` (a fault that neither the
process nor the health check shows).
"""

import asyncio
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import aiohttp
import ray

from vime.errors import ServerError
from vime.processes.events import Events
from vime.processes.health import Fault, Health
from vime.processes.program import ProgramProcess, ProgramSpec
from vime.processes.restarts import Restarts
from vime.processes.secret import headers
from vime.tasks import cancel

MAX_BACKOFF_SECONDS = 30.0
"""The longest wait before a restart; the cause of a failed start (a full disk, a taken GPU) may be temporary."""


class State(Enum):
    """The state of a program."""

    down = auto()
    starting = auto()
    healthy = auto()
    """The program's health check answers, but `prepare` is not done."""
    ready = auto()
    given_up = auto()


class Keeper:
    """One program from launch to stop. All methods are coroutines of one event loop."""

    def __init__(self, spec: ProgramSpec, *, is_successor: bool = False) -> None:
        """A successor takes the place of a lost keeper: it restarts the program even if its own first start fails."""
        self.state = State.down
        self.process = ProgramProcess(spec)
        self._events = Events(spec.name)
        self._is_successor = is_successor
        self._http: aiohttp.ClientSession | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._may_launch = asyncio.Event()
        self._may_launch.set()
        self._settled = asyncio.Event()
        """Set while the program is ready, and once it is given up."""
        self._failure = ""
        """The reason why the program was given up."""

    @property
    def is_ready(self) -> bool:
        """True if the program is healthy and prepared."""
        return self.state is State.ready

    @property
    def is_healthy(self) -> bool:
        """True if the health check of the program answered, prepared or not."""
        return self.state in (State.healthy, State.ready)

    @property
    def http(self) -> aiohttp.ClientSession:
        """The HTTP client for the program, whose requests carry its secret."""
        assert self._http is not None, "start comes first"
        return self._http

    async def has_started(self) -> bool:
        """True once a healthy program has really started."""
        return True

    async def prepare(self) -> Fault | None:
        """Prepares a healthy program; returns the fault if that fails."""
        return None

    async def until_fault(self) -> Fault:
        """Waits for a fault that only a subclass can see."""
        return await asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Launches the program and returns at once."""
        self._http = aiohttp.ClientSession(headers=headers(self.process.spec.secret))
        self._keeping = asyncio.create_task(self._keep(Health(self.process, self._http)))
        self._keeping.add_done_callback(self._keeping_ended)

    async def ready(self) -> None:
        """Waits until the program is ready; raises ServerError, with the log's end, if it was given up."""
        await self._settled.wait()
        self.raise_if_given_up()

    async def trouble(self) -> str:
        """The last fault of the program, empty if it is ready; raises ServerError if it was given up."""
        self.raise_if_given_up()
        return "" if self.is_ready else self._events.last

    async def url(self) -> str:
        """The address at which the program answers; another one after a restart whose port was taken."""
        return self.process.spec.url

    async def events(self) -> list[dict[str, Any]]:
        """The faults since the last call: died, hung, sync_failed, moved, recovered, gave_up."""
        return self._events.take()

    async def pid(self) -> int | None:
        """Id of the launched process: the supervisor's parent, the program's grandparent."""
        return self.process.pid()

    async def set_command(self, command: list[str], *, restart: bool) -> None:
        """Sets another command, used from the next launch on, or, with `restart`, at once."""
        self.process.spec = replace(self.process.spec, command=command)
        if restart:
            await self.process.kill()

    def forget(self, *, log: str) -> None:
        """Forgets past events; the log of the program is found under this name from now on."""
        self._events.take()
        self.process.share_log(log)

    async def stop(self) -> None:
        """Ends the program and its processes."""
        if self._keeping is not None:
            self._keeping.cancel()
        await self.process.kill()
        if self._http is not None:
            await self._http.close()

    def raise_if_given_up(self) -> None:
        """Raises ServerError, with the log's end, if the program was given up."""
        if self.state is State.given_up:
            raise ServerError(self._failure)

    def hold_launches(self) -> None:
        """Stops launches: from now on, a program that is down is not launched."""
        self._may_launch.clear()

    def allow_launches(self) -> None:
        """Ends `hold_launches`: a program that is down is launched."""
        self._may_launch.set()

    def withdraw(self) -> None:
        """The program is not healthy any more: a fault was found, after which it is launched again or given up."""
        if self.is_healthy:
            self.state = State.down
            self._settled.clear()

    async def restart(self, event: str, detail: str) -> None:
        """Ends the program for this reason, so that it is launched again; returns when it has ended."""
        self.withdraw()
        self._events.record(event, detail)
        await self.process.kill()

    async def _keep(self, health: Health) -> None:
        """Launch, wait, watch, again: as often as `Restarts` allows, and not if the first start of all fails."""
        settings, clock = self.process.spec.settings, asyncio.get_running_loop().time
        restarts = Restarts(settings.max_restarts, settings.restart_window_seconds)
        attempt = failed_starts = 0
        while True:
            while not self._may_launch.is_set():
                await self._may_launch.wait()
            fault = await self._launched(health)
            if fault is None:
                fault = await self.prepare()
            was_ready = fault is None
            failed_starts = 0 if was_ready else failed_starts + 1
            if fault is None:
                self.state = State.ready  # before anything that waited for `prepare` can run
                self._settled.set()
                if attempt or self._is_successor:
                    self._events.record("recovered", f"restart {attempt}")
                since = clock()
                fault = await self._until_lost(health)
                restarts.was_well(clock() - since)
            self.withdraw()
            await self.process.kill()
            self._events.record(*fault)
            if (attempt == 0 and not was_ready and not self._is_successor) or not restarts.take():
                break
            if not was_ready:
                await asyncio.sleep(min(2.0 ** (failed_starts - 1), MAX_BACKOFF_SECONDS))
            attempt += 1
        self._give_up(": ".join(fault))

    async def _launched(self, health: Health) -> Fault | None:
        """Launches, and waits until the program is healthy or has failed."""
        self.state = State.starting
        if await self.process.take_port():
            self._events.record("moved", f"its port was taken, it answers at {self.process.spec.url}")
        self.process.launch()
        fault = await health.until_started(self.has_started)
        self.state = State.healthy if fault is None else State.down
        return fault

    async def _until_lost(self, health: Health) -> Fault:
        """Waits for the first of these: the process ends, its health check fails, or a subclass finds a fault."""
        watches = [asyncio.create_task(health.until_lost()), asyncio.create_task(self.until_fault())]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            await cancel(watches)

    def _give_up(self, reason: str) -> None:
        spec = self.process.spec
        self._failure = f"{spec.name} ({spec.url}) was given up: {reason}\n{self.process.log_tail()}"
        self.state = State.given_up
        self._events.record("gave_up", reason)
        self._settled.set()

    def _keeping_ended(self, keeping: "asyncio.Task[None]") -> None:
        """Gives the program up if the keeper itself failed, so that nothing waits for it forever."""
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            self._give_up(repr(error))


KeeperActor = ray.remote(Keeper)
"""The Ray actor of a program that needs no more than its keeper: a router, the retrieval service."""
