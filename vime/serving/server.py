"""One server, kept alive and given its weights: those of each sync, and the last ones again after a restart.

`ServerActor` is the Ray actor around it; a router has one too, and never gets weights. A server counts as ready once it is
healthy and holds the last version it was given.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import ray

from vime.errors import ServerError, WeightSyncError, describe
from vime.processes.control import UNREACHABLE, call
from vime.processes.health import POLL_SECONDS, Fault
from vime.processes.keeper import Keeper
from vime.processes.program import ProgramSpec
from vime.serving.server_metrics import ServerMetrics, read_metrics
from vime.weights.payload import NO_VERSION, SYNC_TIMEOUT_SECONDS, WeightPayload
from vime.weights.update import Control, apply_payload


class Server(Keeper):
    """A program with weights. All methods are coroutines of one event loop."""

    def __init__(self, spec: ProgramSpec) -> None:
        super().__init__(spec)
        self._payload: WeightPayload | None = None
        self._version = NO_VERSION
        """The last version that this server should hold; its payload is None or older if it was sent without files."""
        self._wants_weights = asyncio.Event()
        self._asked_for: int | None = None
        self._update_started = 0.0
        self._sleeping: int | None = None
        """The launch of the program that has given its memory back."""

    async def adopt(self, version: int, payload: WeightPayload | None, *, asleep: bool = False) -> None:
        """Takes the place of a lost actor, before `start`: with its weights, and with restarts also if the first start fails.

        If the others are asleep, the launch waits for `may_start`.
        """
        self._version, self._payload, self._is_successor = version, payload, True
        if asleep:
            self._awake.clear()

    async def set_command(self, command: list[str], *, restart: bool) -> None:
        """Another command from the next launch on, or, with `restart`, now."""
        self._program.spec = replace(self._program.spec, command=command)
        if restart:
            await self._program.kill()

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
                await self._start_again(f"version {payload.version}: {describe(error)}")
                return {}

    async def begin_update(self, version: int) -> int:
        """Stops generation for weights that come without files; `end_update` or `fail_update` must follow.

        Returns the id of this launch of the program, or 0 if the server is down: then none of the two follows, and it
        asks for weights when it is back. Raises ServerError if it was given up.
        """
        if self._failure is not None:
            raise ServerError(self._failure)
        await self._lock.acquire()
        self._version = version
        self._update_started = time.monotonic()
        if self._ready.is_set():
            try:
                await self._control().stop_generation(asleep=self._is_asleep, keep_cache=self._program.spec.keep_cache)
                return self._program.launch_id
            except (*UNREACHABLE, ServerError) as error:
                await self._start_again(f"version {version}: {describe(error)}")
        self._lock.release()
        return 0

    async def end_update(self, sent: WeightPayload) -> dict[str, float]:
        """Checks what arrived and goes on generating, unless it sleeps; returns the pause, or nothing if the server was lost.

        Raises WeightSyncError if it received other bytes or its layers compute with others.
        """
        try:
            if not self._ready.is_set():
                return {}
            await self._control().check(sent)
            proof = await self._control().prove(sent)
            if not self._is_asleep:
                await self._control().resume_generation(keep_cache=self._program.spec.keep_cache)
            return {"pause_seconds": time.monotonic() - self._update_started, **proof}
        except (*UNREACHABLE, ServerError) as error:
            await self._start_again(f"version {sent.version}: {describe(error)}")
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
        """Gives the GPU's memory back (vLLM's sleep: level 1 keeps the weights in main memory, 2 drops them).

        A server that is just starting is waited for, since it cannot give back what it is taking; one that cannot sleep is
        ended. One that is down starts again after `may_start`.
        """
        self._awake.clear()
        while self._is_starting:
            await asyncio.sleep(POLL_SECONDS)
        async with self._lock:
            if self._is_up and not self._is_asleep:
                launch = self._program.launch_id
                try:
                    await self._post(f"/sleep?level={level}&mode=keep")
                    self._sleeping = launch
                except (*UNREACHABLE, ServerError) as error:
                    await self._start_again(f"sleep: {describe(error)}")

    async def wake(self) -> None:
        """Takes the GPU's memory back, all that it does not have yet, and goes on generating; one that is down stays so."""
        async with self._lock:
            if self._is_up and self._is_asleep:
                self._sleeping = None
                try:
                    await self._post("/wake_up")
                    await self._control().resume_generation(keep_cache=False)  # its memory was another's meanwhile
                except (*UNREACHABLE, ServerError) as error:
                    await self._start_again(f"wake: {describe(error)}")

    async def may_start(self) -> None:
        """The GPU has room for a whole server: a program that is down is launched again."""
        self._awake.set()

    async def metrics(self) -> ServerMetrics | None:
        """vLLM's counters, None if the server does not answer now."""
        assert self._session is not None
        return await read_metrics(self._session, self._program.spec.url)

    async def _restored(self) -> Fault | None:
        """Ready, once the server holds the weights that it should; asks for them if there are no files of them."""
        while True:
            async with self._lock:  # a sync that comes meanwhile waits, then brings its own payload
                if self._has_files():
                    return await self._restore_payload()
            if self._asked_for != self._version:
                self._asked_for = self._version
                self._wants_weights.set()
            if (code := self._program.exit_code()) is not None:
                return "died", f"while it waited for its weights, exit code {code}"
            await asyncio.sleep(POLL_SECONDS)

    def _has_files(self) -> bool:
        """Whether the version that it should hold is there from its start or lies there in files."""
        if self._payload is None:
            return self._version == NO_VERSION or (self._version == 0 and not self._program.spec.awaits_weights)
        return self._version == self._payload.version and all(Path(file).exists() for file in self._payload.files)

    async def _restore_payload(self) -> Fault | None:
        if self._payload is not None:
            try:
                await self._apply(self._payload)
            except (*UNREACHABLE, ServerError, WeightSyncError) as error:
                return "sync_failed", f"version {self._payload.version} after a restart: {describe(error)}"
        self._set_ready()
        return None

    async def _start_again(self, reason: str) -> None:
        """Has the keeper start the program again and give it its weights: half updated, it must not serve."""
        self._ready.clear()
        self._record("sync_failed", reason)
        await self._program.kill()

    async def _apply(self, payload: WeightPayload) -> dict[str, float]:
        assert self._session is not None
        return await apply_payload(
            self._session,
            self._program.spec.url,
            payload,
            name=self._program.spec.name,
            timeout_seconds=SYNC_TIMEOUT_SECONDS,
            asleep=self._is_asleep,
            # After a restart it has answered with the checkpoint's weights, under the name of the version that was asked for.
            keep_cache=self._program.spec.keep_cache and self._ready.is_set(),
        )

    @property
    def _is_asleep(self) -> bool:
        return self._sleeping == self._program.launch_id

    def _control(self) -> Control:
        assert self._session is not None
        return Control(self._session, self._program.spec.url, name=self._program.spec.name, timeout_seconds=SYNC_TIMEOUT_SECONDS)

    async def _post(self, path: str) -> None:
        assert self._session is not None
        await call(self._session, self._program.spec.url, path, timeout_seconds=SYNC_TIMEOUT_SECONDS)


ServerActor = ray.remote(Server)
"""Create with `ServerActor.options(num_cpus=0).remote(spec)`: one replica each."""
