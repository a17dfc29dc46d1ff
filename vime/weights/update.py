"""Brings one version of the weights to one vLLM server by its control endpoints.

They are open because the server runs with VLLM_SERVER_DEV_MODE=1; the router answers 404 to them, so each server is called.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp

from vime.errors import ServerError, WeightSyncError
from vime.processes.control import call
from vime.weights.payload import EXCHANGE_PATH, LacksBase, WeightPayload

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS, POLL_SECONDS = 0.001, 0.01
"""Intervals at which a worker is asked whether it is ready; the first is shorter, because small models are ready sooner."""
OF_THE_SLOWEST = ("pause_seconds", "products_seconds", "proof_seconds", "num_unread_tensors")
"""Metrics of an update; the largest value of several servers counts."""
LACKS = "lacks_base"
"""The only metric of an update that a server could not make, because the version came as a difference that it cannot use."""
NUM_NAMED = 10
"""Number of tensors that an error names at most."""


async def apply_payload(
    session: aiohttp.ClientSession,
    url: str,
    payload: WeightPayload,
    *,
    name: str,
    timeout_seconds: float,
    asleep: bool = False,
    keep_cache: bool = False,
) -> dict[str, float]:
    """Checks the files that arrived, then pauses a server, loads them, proves it, clears the prefix cache, and resumes.

    A server that can hold the weights twice (`vime.inside_vllm.shadow`) loads and proves them before, and then only exchanges
    them. Requests in flight stay in the queue and go on under the new weights, their keys and values computed again unless
    `keep_cache`. A server that is `asleep` is only given the memory for its weights, and sleeps on. Returns the seconds of the
    check, of the pause, of the products of a shadow's proof in it and of the proof, and how many tensors the proof could not
    read. Raises WeightSyncError if other bytes arrived than were sent (the server then goes on with its old weights) or if its
    layers do not compute with what was sent (without a shadow it then stays paused), ServerError or aiohttp's errors if the
    server does not do its part (it must then be restarted: it may hold half of the new weights).
    """
    control = Control(session, url, name=name, timeout_seconds=timeout_seconds)
    if missing := [file for file in payload.files if not Path(file).exists()]:
        raise WeightSyncError(f"version {payload.version} cannot be brought to {name} ({url}): {missing[0]} is not there")
    started = time.monotonic()
    if asleep:
        await control.stop_generation(
            asleep=True, keep_cache=keep_cache
        )  # before the check: a sleeping server has no memory to load into
    await control.expect(payload.files)
    try:
        is_loaded = await control.check(payload)
        proof = await control.prove(payload) if is_loaded else {}
    except WeightSyncError:
        await control.expect([])
        raise
    except LacksBase as lacking:
        logger.warning("%s gets version %d whole: %s", name, payload.version, lacking)
        await control.expect([])
        return {LACKS: 1.0}
    paused = time.monotonic()
    if is_loaded:
        assert not asleep, "no server on a CPU sleeps"
        pause = await control.exchange(payload, keep_cache=keep_cache)
    else:
        if not asleep:
            await control.stop_generation(asleep=False, keep_cache=keep_cache)
        await control.post("/start_weight_update")
        for file in payload.files:
            await control.post("/update_weights", {"update_info": {"files": [file]}})
        await control.post("/finish_weight_update", {"weight_version": payload.label})
        proof = await control.prove(payload)
        if not asleep:
            await control.resume_generation(keep_cache=keep_cache)
        pause = time.monotonic() - paused
    return {"check_seconds": paused - started, "pause_seconds": pause + proof["products_seconds"], **proof}


class Control:
    """The control endpoints of one server, for one weight update."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, name: str, timeout_seconds: float) -> None:
        self._session, self._url, self._timeout_seconds = session, url, timeout_seconds
        self._name = name

    async def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Posts to a path of this server; raises ServerError if its status is not 200."""
        return await call(self._session, self._url, path, timeout_seconds=self._timeout_seconds, body=body)

    async def stop_generation(self, *, asleep: bool, keep_cache: bool) -> None:
        """Stops between two tokens and keeps the requests; one that is asleep has stopped, and gets memory for its weights."""
        pause = f"/pause?mode=keep&clear_cache={str(not keep_cache).lower()}"
        await self.post("/wake_up?tags=weights" if asleep else pause)

    async def resume_generation(self, *, keep_cache: bool) -> None:
        """Clears the prefix cache, whose keys and values are those of the old weights, unless `keep_cache`, and goes on."""
        if not keep_cache:
            cleared = await self.post("/reset_prefix_cache?reset_running_requests=true")
            if not cleared.get("success"):
                raise ServerError(f"{self._name} ({self._url}) did not clear its prefix cache: {cleared}")
        await self.post("/resume")

    async def exchange(self, payload: WeightPayload, *, keep_cache: bool) -> float:
        """Has the engine take weights that are loaded, between two steps; returns the seconds for which it stood still."""
        body = {"weight_version": payload.label, "keep_cache": keep_cache}
        return float((await self.post(EXCHANGE_PATH, body))["seconds"])

    async def expect(self, files: list[str]) -> None:
        """Has the workers map and hash files, and load them beside their weights where they can; none, to drop the last."""
        await self.post("/collective_rpc", {"method": "expect_files", "args": files})

    async def check(self, payload: WeightPayload) -> bool:
        """Returns whether the weights are loaded beside the present ones.

        Raises WeightSyncError if a worker received other bytes than were sent, `LacksBase` if it needs the whole version.
        """
        reports = await self._answers("weight_report")
        if lacks := [report[LACKS] for report in reports if report.get(LACKS)]:
            raise LacksBase(lacks[0])
        for rank, report in enumerate(reports):
            if report["digest"] != payload.digest:
                raise WeightSyncError(
                    f"server {self._name} ({self._url}), rank {rank} received other weights than version {payload.version}: "
                    f"expected digest {payload.digest} ({payload.num_tensors} tensors), got {report['digest']} "
                    f"({report['num_tensors']} tensors); was a bucket lost, cut short or written over before the server read it?"
                )
        return all(report["is_loaded"] for report in reports)

    async def prove(self, payload: WeightPayload) -> dict[str, float]:
        """Raises WeightSyncError if a worker's layers compute with other weights than were sent; returns its cost.

        `products_seconds` is the time that a server which is not paused has not generated for it.
        """
        seconds, products, num_unread = 0.0, 0.0, 0
        for rank, proof in enumerate(await self._answers("weight_proof")):
            if wrong := proof["wrong"]:
                more = [f"and {len(wrong) - NUM_NAMED} more"] if len(wrong) > NUM_NAMED else []
                raise WeightSyncError(
                    f"server {self._name} ({self._url}), rank {rank} got version {payload.version} whole, but did not load it:"
                    + "\n  ".join(["", *wrong[:NUM_NAMED], *more])
                    + f"\nvLLM dropped or misplaced these {len(wrong)} of {payload.num_tensors} tensors (its log may say "
                    "'Failed to load weights'); vllm_args that change how weights are loaded are the first suspects. The "
                    "run ends; resume=true starts new servers and goes on from the last checkpoint"
                )
            seconds, products = max(seconds, proof["seconds"]), max(products, proof["products_seconds"])
            num_unread = max(num_unread, len(proof["unread"]))
            if proof["unread"]:
                logger.warning("%s: no proof for %d tensors: %s", self._name, num_unread, ", ".join(proof["unread"][:NUM_NAMED]))
        return {"proof_seconds": seconds, "products_seconds": products, "num_unread_tensors": float(num_unread)}

    async def _answers(self, method: str) -> list[dict[str, Any]]:
        """Returns each worker's answer once none is pending; they may go on generating meanwhile."""
        deadline, wait = time.monotonic() + self._timeout_seconds, FIRST_POLL_SECONDS
        while time.monotonic() < deadline:
            answers = (await self.post("/collective_rpc", {"method": method}))["results"]
            if not any(answer["pending"] for answer in answers):
                return answers
            await asyncio.sleep(wait)
            wait = min(2 * wait, POLL_SECONDS)
        raise ServerError(f"{method} took longer than {self._timeout_seconds:.0f} s")
