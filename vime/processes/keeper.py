"""Keeps one program alive: launches it, watches it, launches it again, and gives it up after too many times."""

import asyncio
import logging
import time
from typing import Any

import aiohttp

from vime.errors import ServerError
from vime.processes.health import Fault, Health
from vime.processes.program import Program, ProgramSpec
from vime.processes.restarts import Restarts
from vime.processes.secret import headers
from vime.tasks import cancel

logger = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 30.0
"""The longest wait before a restart; what keeps a program from starting (a full disk, a taken GPU) may pass."""
CHECKS_PER_TIMEOUT = 4
"""How often the engine is asked within the time that it may be silent."""


class Keeper:
    """One program from launch to stop. All methods are coroutines of one event loop."""

    def __init__(self, spec: ProgramSpec) -> None:
        self._program = Program(spec)
        self._session: aiohttp.ClientSession | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_successor = False
        self._lock = asyncio.Lock()
        """Held by whoever has the program do something during which its engine may be silent."""
        self._ready = asyncio.Event()
        self._awake = asyncio.Event()
        """Whether the GPU is the program's; while it is the trainer's, nothing is launched."""
        self._awake.set()
        self._is_starting = False
        self._is_up = False
        """Healthy, though perhaps without its weights."""
        self._settled = asyncio.Event()
        """Ready or given up."""
        self._failure: str | None = None
        self._last_event = "it is starting"
        self._events: list[dict[str, Any]] = []

    async def start(self) -> None:
        """Launches the program and returns at once."""
        self._session = aiohttp.ClientSession(headers=headers(self._program.spec.secret))
        self._keeping = asyncio.create_task(self._keep(Health(self._program, self._session)))
        self._keeping.add_done_callback(self._keeping_ended)

    async def ready(self) -> None:
        """Waits until the program is healthy and has its weights; raises ServerError, with the log's end, if it gave up."""
        await self._settled.wait()
        if self._failure is not None:
            raise ServerError(self._failure)

    async def trouble(self) -> str:
        """Empty if the program is ready, else what happened to it last; raises ServerError if it was given up."""
        if self._failure is not None:
            raise ServerError(self._failure)
        return "" if self._ready.is_set() else self._last_event

    async def url(self) -> str:
        """Where the program answers; another address after a restart whose port was taken."""
        return self._program.spec.url

    async def events(self) -> list[dict[str, Any]]:
        """The faults since the last call: died, hung, sync_failed, moved, recovered, gave_up."""
        events, self._events = self._events, []
        return events

    async def pid(self) -> int | None:
        """Process id of what was launched: the supervisor's parent, the program's grandparent."""
        return self._program.pid()

    async def stop(self) -> None:
        """Ends the program and its processes."""
        if self._keeping is not None:
            self._keeping.cancel()
        await self._program.kill()
        if self._session is not None:
            await self._session.close()

    async def _restored(self) -> Fault | None:
        """Called when the program is healthy: makes it ready, or says what went wrong."""
        self._set_ready()
        return None

    async def _keep(self, health: Health) -> None:
        """Launch, wait, watch, again: as often as `Restarts` allows, and not if the first start of all fails."""
        spec, clock = self._program.spec, asyncio.get_running_loop().time
        restarts = Restarts(spec.max_restarts, spec.restart_window_seconds)
        attempt = failed_starts = 0
        while True:
            while not self._awake.is_set():
                await self._awake.wait()
            fault = await self._launched(health) or await self._restored()
            was_ready = fault is None
            failed_starts = 0 if was_ready else failed_starts + 1
            if fault is None:
                if attempt or self._is_successor:
                    self._record("recovered", f"restart {attempt}")
                since = clock()
                fault = await self._until_lost(health)
                restarts.was_well(clock() - since)
            self._ready.clear()
            self._settled.clear()
            self._is_up = False
            await self._program.kill()
            self._record(*fault)
            if (attempt == 0 and not was_ready and not self._is_successor) or not restarts.take():
                break
            if not was_ready:
                await asyncio.sleep(min(2.0 ** (failed_starts - 1), MAX_BACKOFF_SECONDS))
            attempt += 1
        self._give_up(": ".join(fault))

    async def _launched(self, health: Health) -> Fault | None:
        """Launches, and waits until the program is healthy or has failed."""
        self._is_starting = True
        try:
            if await self._program.take_port():
                self._record("moved", f"its port was taken, it answers at {self._program.spec.url}")
            self._program.launch()
            fault = await health.until_healthy()
            self._is_up = fault is None
            return fault
        finally:
            self._is_starting = False

    async def _until_lost(self, health: Health) -> Fault:
        """Whichever shows first: the process ends, its health endpoint fails, its engine is silent."""
        watches = [asyncio.create_task(health.until_lost())]
        if self._program.spec.has_engine:
            watches.append(asyncio.create_task(self._until_engine_silent(health)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            await cancel(watches)

    async def _until_engine_silent(self, health: Health) -> Fault:
        spec = self._program.spec
        while True:
            # Rarely: after every call, a worker in a process of its own spins for a second in wait of the next.
            await asyncio.sleep(spec.engine_timeout_seconds / CHECKS_PER_TIMEOUT)
            async with self._lock:  # during an update it may be silent, and an update does not begin on a silent engine
                if not await health.engine_answers():
                    self._ready.clear()
                    return "hung", f"its engine gave no answer for {spec.engine_timeout_seconds:.0f} s"

    def _set_ready(self) -> None:
        self._ready.set()
        self._settled.set()

    def _give_up(self, reason: str) -> None:
        spec = self._program.spec
        self._failure = f"{spec.name} ({spec.url}) was given up: {reason}\n{self._program.log_tail()}"
        self._record("gave_up", reason)
        self._settled.set()

    def _keeping_ended(self, keeping: "asyncio.Task[None]") -> None:
        """A keeper that fails itself must not leave others waiting."""
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            self._give_up(repr(error))

    def _record(self, event: str, detail: str) -> None:
        logger.warning("%s: %s (%s)", self._program.spec.name, event, detail)
        self._last_event = f"{event} ({detail})"
        self._events.append({"time": time.time(), "server": self._program.spec.name, "event": event, "detail": detail})
