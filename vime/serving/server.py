"""One launched program (a vLLM server or a router), kept alive: health-checked, watched, restarted, given its weights back.

`ServerActor` is the Ray actor around it. A server counts as ready once it is healthy and holds the last payload it was given.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import ray

from vime.errors import ServerError, WeightSyncError
from vime.serving.control import UNREACHABLE, apply_payload, is_healthy
from vime.weights import WeightPayload

logger = logging.getLogger(__name__)

START_POLL_SECONDS = 0.2
LOG_TAIL_BYTES = 4000
SYNC_TIMEOUT_SECONDS = 600.0
"""For each control call of a weight sync: loading hundreds of gigabytes from a disk takes its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSpec:
    """What to launch and how to keep it.

    Example: `ProgramSpec(name="actor-0", url="http://127.0.0.1:8001", command=["python", "-m", …], log="…/logs/actor-0.log")`.
    """

    name: str
    url: str
    command: list[str]
    log: str
    environment: dict[str, str | None] = field(default_factory=dict)
    """Set on top of the actor's environment; None removes a variable."""
    remove: list[str] = field(default_factory=list)
    """Folders that go when the run is gone (weight payloads in shared memory)."""
    health_path: str = "/health"
    start_timeout_seconds: float = 300.0
    health_interval_seconds: float = 2.0
    health_failures: int = 5
    max_restarts: int = 3


class Server:
    """One program from launch to stop. All methods are coroutines of one event loop."""

    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._payload: WeightPayload | None = None
        self._lock = asyncio.Lock()
        self._ready = asyncio.Event()
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
            self._payload = payload
            if not self._ready.is_set():
                return {}
            try:
                return await self._apply(payload)
            except (*UNREACHABLE, ServerError) as error:
                # Half updated, it must not serve: the keeper starts it again and gives it the payload.
                self._ready.clear()
                self._record("sync_failed", f"version {payload.version}: {error!r}")
                await self._kill()
                return {}

    async def events(self) -> list[dict[str, Any]]:
        """The faults since the last call: died, hung, sync_failed, recovered, gave_up."""
        events, self._events = self._events, []
        return events

    async def pid(self) -> int | None:
        """Process id of what was launched: the supervisor's parent, the program's grandparent."""
        return self._process.pid if self._process is not None else None

    async def stop(self) -> None:
        """Ends the program and its processes."""
        if self._keeper is not None:
            self._keeper.cancel()
        await self._kill()
        if self._session is not None:
            await self._session.close()

    async def _keep(self) -> None:
        """Launch, wait, watch, again: at most `max_restarts` times, and not if the first start fails."""
        for attempt in range(self._spec.max_restarts + 1):
            self._launch()
            fault = await self._until_ready()
            was_ready = fault is None
            if fault is None:
                if attempt:
                    self._record("recovered", f"restart {attempt}")
                fault = await self._until_lost()
            self._ready.clear()
            self._settled.clear()
            await self._kill()
            self._record(*fault)
            if attempt == 0 and not was_ready:
                break
        self._failure = f"{self._spec.name} ({self._spec.url}) was given up: {': '.join(fault)}\n{self._log_tail()}"
        self._record("gave_up", ": ".join(fault))
        self._settled.set()

    def _launch(self) -> None:
        arguments = [f"--remove={folder}" for folder in self._spec.remove]
        command = [sys.executable, "-m", "vime.serving.launch", f"--owner={os.getpid()}", *arguments, "--", *self._spec.command]
        changes = self._spec.environment
        kept = {key: value for key, value in os.environ.items() if key not in changes}
        environment = {**kept, **{key: value for key, value in changes.items() if value is not None}}
        with Path(self._spec.log).open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    async def _until_ready(self) -> tuple[str, str] | None:
        deadline = time.monotonic() + self._spec.start_timeout_seconds
        while time.monotonic() < deadline:
            if (code := self._exit_code()) is not None:
                return "died", f"while starting, exit code {code}"
            if await self._is_healthy(timeout_seconds=2.0):
                return await self._restore_weights()
            await asyncio.sleep(START_POLL_SECONDS)
        return "hung", f"not healthy after {self._spec.start_timeout_seconds:.0f} s"

    async def _restore_weights(self) -> tuple[str, str] | None:
        async with self._lock:  # a sync that comes meanwhile waits, then brings its own payload
            if self._payload is not None:
                try:
                    await self._apply(self._payload)
                except (*UNREACHABLE, ServerError, WeightSyncError) as error:
                    return "sync_failed", f"version {self._payload.version} after a restart: {error!r}"
            self._ready.set()
            self._settled.set()
            return None

    async def _until_lost(self) -> tuple[str, str]:
        spec, failures, next_check = self._spec, 0, 0.0
        while failures < spec.health_failures:
            if (code := self._exit_code()) is not None:
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
            self._session, self._spec.url, payload, name=self._spec.name, timeout_seconds=SYNC_TIMEOUT_SECONDS
        )

    def _exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    async def _kill(self) -> None:
        """Has the supervisor end the tree; returns when both are gone."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)

    def _record(self, event: str, detail: str) -> None:
        logger.warning("%s: %s (%s)", self._spec.name, event, detail)
        self._events.append({"time": time.time(), "server": self._spec.name, "event": event, "detail": detail})

    def _log_tail(self) -> str:
        with Path(self._spec.log).open("rb") as log:
            log.seek(max(0, os.path.getsize(self._spec.log) - LOG_TAIL_BYTES))
            return f"end of {self._spec.log}:\n{log.read().decode(errors='replace')}"


ServerActor = ray.remote(Server)
"""Create with `ServerActor.options(num_cpus=0).remote(spec)`: one replica each."""
