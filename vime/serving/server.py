"""The keeper of a vLLM server: the weights of each sync, the last ones again after a restart, and sleep on shared GPUs.

`ServerActor` is the Ray actor around it. A server counts as ready once it is healthy, has generated a token and holds the last
version that it was given.

vLLM's `/health` answers also while the engine or a worker is stopped, so the engine is asked as well: a call of a worker's empty
method passes through API server, engine and worker, is taken between two steps, and does not queue behind requests; so it shows a
hang of any of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import ray

from vime.errors import ServerError, WeightSyncError, describe
from vime.processes.control import UNREACHABLE
from vime.processes.health import POLL_SECONDS, Fault
from vime.processes.keeper import Keeper, State
from vime.processes.program import ProgramSpec
from vime.serving.server_metrics import ServerMetrics, read_metrics
from vime.weights.payload import SYNC_TIMEOUT_SECONDS, WeightPayload
from vime.weights.policy import Policy
from vime.weights.update import Control, apply_payload

FIRST_TOKEN = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "logprobs": 0, "detokenize": False}}
CHECKS_PER_TIMEOUT = 4
"""Number of checks of the engine within the time that it may be silent."""


class Server(Keeper):
    """One server from launch to stop. All methods are coroutines of one event loop."""

    def __init__(
        self,
        spec: ProgramSpec,
        *,
        policy: Policy | None = None,
        starts_random: bool = False,
        is_successor: bool = False,
        asleep: bool = False,
        is_joining: bool = False,
    ) -> None:
        """`policy` has the server's right version; a server that `starts_random` must not answer before it has real weights.

        A successor takes the place of a lost actor. If the other servers are asleep, its launch waits for `may_start`. One that
        joins a run under way may fail to start without an error for the run: only `ready` raises it.
        """
        super().__init__(spec, is_successor=is_successor)
        self._keep_cache = spec.settings.keep_cache
        self._policy, self._starts_random = policy or Policy(), starts_random
        self._is_joining = is_joining
        self._lock = asyncio.Lock()
        """A lock for work during which the engine may be silent, such as a weight sync."""
        self._wants_weights = asyncio.Event()
        self._asked_for: int | None = None
        self._update_started = 0.0
        self._sleeping: int | None = None
        """Number of the launch whose program has freed its GPU memory."""
        if asleep:
            self.hold_launches()

    async def ready(self) -> None:
        """Waits until the server is ready; raises ServerError, with the log's end, if it was given up."""
        await self._settled.wait()
        if self.is_ready:
            self._is_joining = False
        super().raise_if_given_up()

    def raise_if_given_up(self) -> None:
        """Raises ServerError, with the log's end, if the server was given up, unless it was to join and never did."""
        if not self._is_joining:
            super().raise_if_given_up()

    async def drain(self, seconds: float) -> float:
        """Waits until the server has no request left, for at most so long; returns the number that are left."""
        deadline = time.monotonic() + seconds
        while (found := await self.metrics()) is not None and (left := found.num_running + found.num_waiting):
            if time.monotonic() > deadline:
                return left
            await asyncio.sleep(POLL_SECONDS)
        return 0.0

    async def hand_over(self) -> None:
        """Ends all requests: their clients get the tokens sampled so far, and ask another server for the rest."""
        async with self._lock:
            if self.is_ready:
                with contextlib.suppress(*UNREACHABLE, ServerError):  # one that is lost is about to end as well
                    await self._control.post("/pause?mode=abort&clear_cache=true")

    async def renew(self, log: str) -> ServerMetrics | None:
        """Becomes a server of another run: drops all requests, the prefix cache, and the weights that it should hold.

        Its log goes on under the name `log` as well. Returns its counters, or None if it is not ready now; then it must be ended.
        """
        async with self._lock:
            if not self.is_ready or self._is_asleep:
                return None
            try:
                await self._control.post("/pause?mode=abort&clear_cache=true")
                await self._control.resume_generation(keep_cache=False)
            except (*UNREACHABLE, ServerError):
                return None
            self._policy, self._asked_for = Policy(), None
            self._wants_weights.clear()
            self.forget(log=log)
            return await self.metrics()

    async def sync(self, payload: WeightPayload, *, is_past: bool = False) -> dict[str, float]:
        """Brings a payload to the server and remembers it for restarts; one that `is_past` may be older than the last one.

        Returns `apply_payload`'s metrics, or nothing if the server is down: it gets the payload when it comes back.
        Raises WeightSyncError if it received other bytes, ServerError if it was given up.
        """
        self.raise_if_given_up()
        async with self._lock:
            self._policy.expect(payload.version if is_past else max(payload.version, self._policy.version), payload)
            self._asked_for = None
            if self.is_ready:
                async with self._restarted_on_failure(f"version {payload.version}"):
                    return await self._apply(payload, keep_cache=self._keep_cache and not is_past)
            return {}

    async def begin_update(self, version: int) -> int:
        """Stops generation for weights that come without files; `end_update` or `fail_update` must follow.

        Returns the id of this launch of the program, or 0 if the server is down: then none of the two follows, and it
        asks for weights when it is back. Raises ServerError if it was given up.
        """
        self.raise_if_given_up()
        await self._lock.acquire()
        self._policy.version, self._update_started = version, time.monotonic()
        if self.is_ready:
            async with self._restarted_on_failure(f"version {version}"):
                await self._control.stop_generation(asleep=self._is_asleep, keep_cache=self._keep_cache)
                return self.process.launch_id
        self._lock.release()
        return 0

    async def end_update(self, sent: WeightPayload) -> dict[str, float]:
        """Checks the new weights and goes on generating, unless it sleeps; returns the pause, or nothing if the server was lost.

        Raises WeightSyncError if it received other bytes or its layers compute with others.
        """
        try:
            if self.is_ready:
                async with self._restarted_on_failure(f"version {sent.version}"):
                    await self._control.check(sent)
                    proof = await self._control.prove(sent)
                    if not self._is_asleep:
                        await self._control.resume_generation(keep_cache=self._keep_cache)
                    return {"pause_seconds": time.monotonic() - self._update_started, **proof}
            return {}
        finally:
            self._lock.release()

    async def fail_update(self, reason: str) -> None:
        """Starts the program again: half updated, it must not serve."""
        try:
            await self.restart("sync_failed", reason)
        finally:
            self._lock.release()

    async def wants_weights(self) -> None:
        """Waits until a restarted server needs weights that only the trainer has; answer with `sync`."""
        await self._wants_weights.wait()
        self._wants_weights.clear()

    async def sleep(self, level: int) -> None:
        """Gives the GPU's memory back (vLLM's sleep: level 1 keeps the weights in host memory, 2 drops them).

        A server that is just starting is waited for, since it cannot give back what it is taking; one that cannot sleep is
        ended. One that is down starts again after `may_start`.
        """
        self.hold_launches()
        while self.state is State.starting:
            await asyncio.sleep(POLL_SECONDS)
        async with self._lock:
            if self.is_healthy and not self._is_asleep:
                launch = self.process.launch_id
                async with self._restarted_on_failure("sleep"):
                    await self._control.post(f"/sleep?level={level}&mode=keep")
                    self._sleeping = launch

    async def wake(self) -> None:
        """Takes the GPU's memory back, all that it does not have yet, and goes on generating; one that is down stays so."""
        async with self._lock:
            if self.is_healthy and self._is_asleep:
                self._sleeping = None
                async with self._restarted_on_failure("wake"):
                    await self._control.post("/wake_up")
                    await self._control.resume_generation(keep_cache=False)  # its memory was another's meanwhile

    async def may_start(self) -> None:
        """The GPU has room for a whole server: a program that is down is launched again."""
        self.allow_launches()

    async def metrics(self) -> ServerMetrics | None:
        """vLLM's counters, None if the server does not answer now."""
        return await read_metrics(self.http, self.process.spec.url)

    async def has_started(self) -> bool:
        """True once it has generated a token."""
        spec = self.process.spec
        return await _generates(self.http, spec.url, timeout_seconds=spec.settings.start_timeout_seconds)

    async def until_fault(self) -> Fault:
        """Waits until the engine is silent for too long."""
        limit = self.process.spec.settings.engine_timeout_seconds
        while True:
            # Rarely: after every call, a worker in a process of its own spins for a second in wait of the next.
            await asyncio.sleep(limit / CHECKS_PER_TIMEOUT)
            async with self._lock:  # during an update it may be silent, and an update does not begin on a silent engine
                if await _is_silent(self.http, self.process.spec.url, timeout_seconds=limit):
                    self.withdraw()
                    return "hung", f"its engine gave no answer for {limit:.0f} s"

    async def prepare(self) -> Fault | None:
        """Waits until the server holds the weights that it should; asks for them if there are no files of them."""
        while True:
            async with self._lock:  # a sync that comes meanwhile waits, then brings its own payload
                if self._policy.is_at_hand(starts_random=self._starts_random):
                    return await self._restore()
            if self._asked_for != self._policy.version:
                self._asked_for = self._policy.version
                self._wants_weights.set()
            if (code := self.process.exit_code()) is not None:
                return "died", f"while it waited for its weights, exit code {code}"
            await asyncio.sleep(POLL_SECONDS)

    async def _restore(self) -> Fault | None:
        try:
            for payload in self._policy.payloads.values():
                # It has answered with the checkpoint's weights, under the name of the version that was asked for.
                await self._apply(payload, keep_cache=False)
        except (*UNREACHABLE, ServerError, WeightSyncError) as error:
            return "sync_failed", f"version {self._policy.version} after a restart: {describe(error)}"
        return None

    @asynccontextmanager
    async def _restarted_on_failure(self, doing: str) -> AsyncIterator[None]:
        """Starts the server again if a call within the block fails, because a half-updated server must not serve."""
        try:
            yield
        except (*UNREACHABLE, ServerError) as error:
            await self.restart("sync_failed", f"{doing}: {describe(error)}")

    async def _apply(self, payload: WeightPayload, *, keep_cache: bool) -> dict[str, float]:
        spec = self.process.spec
        return await apply_payload(
            self.http,
            spec.url,
            payload,
            name=spec.name,
            timeout_seconds=SYNC_TIMEOUT_SECONDS,
            asleep=self._is_asleep,
            keep_cache=keep_cache,
        )

    @property
    def _is_asleep(self) -> bool:
        return self._sleeping == self.process.launch_id

    @property
    def _control(self) -> Control:
        spec = self.process.spec
        return Control(self.http, spec.url, name=spec.name, timeout_seconds=SYNC_TIMEOUT_SECONDS)


ServerActor = ray.remote(Server)
"""The Ray actor of one replica."""


async def _generates(http: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """True if a server generates its first token, for which it may compile kernels: after that, silence means something."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with http.post(f"{url}/inference/v1/generate", json=FIRST_TOKEN, timeout=timeout) as response:
            return response.status < 500
    except UNREACHABLE:
        return False


async def _is_silent(http: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """True if engine or workers take longer than they may to answer; any other failure shows elsewhere."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with http.post(f"{url}/collective_rpc", json={"method": "check_health"}, timeout=timeout):
            return False
    except TimeoutError:
        return True
    except (aiohttp.ClientError, OSError):
        return False
