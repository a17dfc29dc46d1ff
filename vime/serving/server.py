"""One launched program (a vLLM server or a router), kept alive: health-checked, watched, restarted, given its weights back.

`ServerActor` is the Ray actor around it. A server counts as ready once it is healthy and holds the last payload it was given.
"""

import asyncio
import logging
import time
from typing import Any

import aiohttp
import ray

from vime.errors import ServerError, WeightSyncError
from vime.serving.control import UNREACHABLE, Control, apply_payload, call, is_healthy
from vime.serving.program import Program, ProgramSpec
from vime.weights import SYNC_TIMEOUT_SECONDS, WeightPayload

logger = logging.getLogger(__name__)

START_POLL_SECONDS = 0.2


class Server:
    """One program from launch to stop. All methods are coroutines of one event loop."""

    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        self._program = Program(spec)
        self._session: aiohttp.ClientSession | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._payload: WeightPayload | None = None
        self._version = 0
        """The last version that this server should hold; its payload is None or older if it was sent without files."""
        self._wants_weights = asyncio.Event()
        self._asked_for: int | None = None
        self._update_started = 0.0
        self._lock = asyncio.Lock()
        self._ready = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._failure: str | None = None
        self._settled = asyncio.Event()
        self._events: list[dict[str, Any]] = []

    async def start(self) -> None:
        """Launches the program and returns at once."""
        self._session = aiohttp.ClientSession()
        self._keeper = asyncio.create_task(self._keep())

    async def ready(self) -> None:
        """Waits until the program is healthy and has its weights; raises ServerError, with the log's end, if it gave up."""
        await self._settled.wait()
        if self._failure is not None:
            raise ServerError(self._failure)

    async def sync(self, payload: WeightPayload) -> dict[str, float]:
        """Brings a payload to the server and remembers it for restarts.

        Returns `apply_payload`'s metrics, or nothing if the server is down: it gets the payload when it comes back.
        Raises WeightSyncError if it received other bytes, ServerError if it was given up.
        """
        if self._failure is not None:
            raise ServerError(self._failure)
        async with self._lock:
            self._payload, self._version, self._asked_for = payload, max(payload.version, self._version), None
            if not self._ready.is_set():
                return {}
            try:
                return await self._apply(payload)
            except (*UNREACHABLE, ServerError) as error:
                await self._start_again(f"version {payload.version}: {error!r}")
                return {}

    async def begin_update(self, version: int) -> int:
        """Stops generation for weights that come without files; `end_update` or `fail_update` must follow.

        Returns the number of this launch of the program, or 0 if the server is down: then none of the two follows, and it
        asks for weights when it is back. Raises ServerError if it was given up.
        """
        if self._failure is not None:
            raise ServerError(self._failure)
        await self._lock.acquire()
        self._version = version
        self._update_started = time.monotonic()
        if self._ready.is_set():
            try:
                await self._control().stop_generation(asleep=not self._awake.is_set())
                return self._program.num_launches
            except (*UNREACHABLE, ServerError) as error:
                await self._start_again(f"version {version}: {error!r}")
        self._lock.release()
        return 0

    async def end_update(self, sent: WeightPayload) -> dict[str, float]:
        """Checks what arrived and goes on generating, unless it sleeps; returns the pause, or nothing if the server was lost.

        Raises WeightSyncError if it received other bytes.
        """
        try:
            if not self._ready.is_set():
                return {}
            await self._control().check(sent)
            if self._awake.is_set():
                await self._control().resume_generation()
            return {"pause_seconds": time.monotonic() - self._update_started}
        except (*UNREACHABLE, ServerError) as error:
            await self._start_again(f"version {sent.version}: {error!r}")
            return {}
        finally:
            self._lock.release()

    async def fail_update(self, reason: str) -> None:
        """Starts the program again: half updated, it must not serve."""
        try:
            await self._start_again(reason)
        finally:
            self._lock.release()

    async def wants_weights(self) -> None:
        """Waits until a restarted server needs weights that only the trainer has; answer with `sync`."""
        await self._wants_weights.wait()
        self._wants_weights.clear()

    async def sleep(self, level: int) -> None:
        """Gives the GPU's memory back (vLLM's sleep: level 1 keeps the weights in main memory, 2 drops them)."""
        async with self._lock:
            self._awake.clear()
            if self._ready.is_set():
                await self._post(f"/sleep?level={level}&mode=keep")

    async def wake(self) -> None:
        """Takes the GPU's memory back, all that it does not have yet, and goes on generating."""
        async with self._lock:
            if self._ready.is_set() and not self._awake.is_set():
                await self._post("/wake_up")
                await self._control().resume_generation()
            self._awake.set()

    async def events(self) -> list[dict[str, Any]]:
        """The faults since the last call: died, hung, sync_failed, recovered, gave_up."""
        events, self._events = self._events, []
        return events

    async def pid(self) -> int | None:
        """Process id of what was launched: the supervisor's parent, the program's grandparent."""
        return self._program.pid()

    async def stop(self) -> None:
        """Ends the program and its processes."""
        if self._keeper is not None:
            self._keeper.cancel()
        await self._program.kill()
        if self._session is not None:
            await self._session.close()

    async def _keep(self) -> None:
        """Launch, wait, watch, again: at most `max_restarts` times, and not if the first start fails."""
        for attempt in range(self._spec.max_restarts + 1):
            await self._awake.wait()  # the trainer has the GPU now
            self._program.launch()
            fault = await self._until_ready()
            was_ready = fault is None
            if fault is None:
                if attempt:
                    self._record("recovered", f"restart {attempt}")
                fault = await self._until_lost()
            self._ready.clear()
            self._settled.clear()
            await self._program.kill()
            self._record(*fault)
            if attempt == 0 and not was_ready:
                break
        self._failure = f"{self._spec.name} ({self._spec.url}) was given up: {': '.join(fault)}\n{self._program.log_tail()}"
        self._record("gave_up", ": ".join(fault))
        self._settled.set()

    async def _until_ready(self) -> tuple[str, str] | None:
        deadline = time.monotonic() + self._spec.start_timeout_seconds
        while time.monotonic() < deadline:
            if (code := self._program.exit_code()) is not None:
                return "died", f"while starting, exit code {code}"
            if await self._is_healthy(timeout_seconds=2.0):
                return await self._restore_weights()
            await asyncio.sleep(START_POLL_SECONDS)
        return "hung", f"not healthy after {self._spec.start_timeout_seconds:.0f} s"

    async def _restore_weights(self) -> tuple[str, str] | None:
        """Ready, once the server holds the weights that it should; asks for them if there are no files of them."""
        while True:
            async with self._lock:  # a sync that comes meanwhile waits, then brings its own payload
                if self._version == (self._payload.version if self._payload is not None else 0):
                    return await self._restore_payload()
            if self._asked_for != self._version:
                self._asked_for = self._version
                self._wants_weights.set()
            if (code := self._program.exit_code()) is not None:
                return "died", f"while it waited for its weights, exit code {code}"
            await asyncio.sleep(START_POLL_SECONDS)

    async def _restore_payload(self) -> tuple[str, str] | None:
        if self._payload is not None:
            try:
                await self._apply(self._payload)
            except (*UNREACHABLE, ServerError, WeightSyncError) as error:
                return "sync_failed", f"version {self._payload.version} after a restart: {error!r}"
        self._ready.set()
        self._settled.set()
        return None

    async def _start_again(self, reason: str) -> None:
        """Has the keeper start the program again and give it its weights: half updated, it must not serve."""
        self._ready.clear()
        self._record("sync_failed", reason)
        await self._program.kill()

    async def _until_lost(self) -> tuple[str, str]:
        spec, failures, next_check = self._spec, 0, 0.0
        while failures < spec.health_failures:
            if (code := self._program.exit_code()) is not None:
                return "died", f"exit code {code}"
            if time.monotonic() >= next_check:
                healthy = await self._is_healthy(timeout_seconds=max(1.0, spec.health_interval_seconds))
                failures = 0 if healthy else failures + 1
                next_check = time.monotonic() + spec.health_interval_seconds
            await asyncio.sleep(START_POLL_SECONDS)
        return "hung", f"{failures} health checks in a row failed"

    async def _is_healthy(self, *, timeout_seconds: float) -> bool:
        assert self._session is not None
        return await is_healthy(self._session, self._spec.url + self._spec.health_path, timeout_seconds=timeout_seconds)

    async def _apply(self, payload: WeightPayload) -> dict[str, float]:
        assert self._session is not None
        return await apply_payload(
            self._session,
            self._spec.url,
            payload,
            name=self._spec.name,
            timeout_seconds=SYNC_TIMEOUT_SECONDS,
            asleep=not self._awake.is_set(),
        )

    def _control(self) -> Control:
        assert self._session is not None
        return Control(self._session, self._spec.url, name=self._spec.name, timeout_seconds=SYNC_TIMEOUT_SECONDS)

    async def _post(self, path: str) -> None:
        assert self._session is not None
        await call(self._session, self._spec.url, path, timeout_seconds=SYNC_TIMEOUT_SECONDS)

    def _record(self, event: str, detail: str) -> None:
        logger.warning("%s: %s (%s)", self._spec.name, event, detail)
        self._events.append({"time": time.time(), "server": self._spec.name, "event": event, "detail": detail})


ServerActor = ray.remote(Server)
"""Create with `ServerActor.options(num_cpus=0).remote(spec)`: one replica each."""
