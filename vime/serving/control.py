"""The control endpoints of one vLLM server: health, and bringing one version of the weights to it.

They are open because the server runs with VLLM_SERVER_DEV_MODE=1; the router answers 404 to them, so each server is called.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from vime.errors import ServerError, WeightSyncError
from vime.weights import WeightPayload

UNREACHABLE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What a call to a server raises that is gone or hangs."""
HASH_POLL_SECONDS = 0.01


async def is_healthy(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether the health endpoint at `url` answers 200 in time."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout_seconds)) as response:
            return response.status == 200
    except UNREACHABLE:
        return False


async def call(
    session: aiohttp.ClientSession, url: str, path: str, *, timeout_seconds: float, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Posts to a control endpoint and returns its answer; raises ServerError if that is not 200."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    async with session.post(url + path, json=body, timeout=timeout) as response:
        if response.status != 200:
            raise ServerError(f"{url}{path} answered {response.status}: {(await response.text())[:2000]}")
        return await response.json() if response.content_type == "application/json" else {}


async def apply_payload(
    session: aiohttp.ClientSession, url: str, payload: WeightPayload, *, name: str, timeout_seconds: float
) -> dict[str, float]:
    """Checks what arrived, then pauses a server, loads, labels with the version, clears the prefix cache, and resumes.

    Requests in flight stay in the queue and go on under the new weights. Returns the seconds of it all and of the pause.
    Raises WeightSyncError if other bytes arrived than were sent (the server then goes on with its old weights), ServerError or
    aiohttp's errors if the server does not do its part (it must then be restarted: it may hold half of the new weights).
    """

    async def post(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await call(session, url, path, timeout_seconds=timeout_seconds, body=body)

    if missing := [file for file in payload.files if not Path(file).exists()]:
        raise WeightSyncError(f"version {payload.version} cannot be brought to {name} ({url}): {missing[0]} is not there")
    started = time.monotonic()
    await post("/collective_rpc", {"method": "expect_files", "args": payload.files})
    for rank, report in enumerate(await _reports(post, timeout_seconds)):
        _check(report, payload, name=f"{name} ({url}), rank {rank}")
    paused = time.monotonic()
    await post("/pause?mode=keep")
    await post("/start_weight_update")
    for file in payload.files:
        await post("/update_weights", {"update_info": {"files": [file]}})
    await post("/finish_weight_update", {"weight_version": str(payload.version)})
    cleared = await post("/reset_prefix_cache?reset_running_requests=true")
    if not cleared.get("success"):
        raise ServerError(f"{name} ({url}) did not clear its prefix cache: {cleared}")
    await post("/resume")
    finished = time.monotonic()
    return {"seconds": finished - started, "pause_seconds": finished - paused}


async def _reports(post: Callable[..., Awaitable[dict[str, Any]]], timeout_seconds: float) -> list[dict[str, Any]]:
    """What each worker of a server has received, once all have hashed it (they go on generating meanwhile)."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        reports = (await post("/collective_rpc", {"method": "weight_report"}))["results"]
        if not any(report["pending"] for report in reports):
            return reports
        await asyncio.sleep(HASH_POLL_SECONDS)
    raise ServerError(f"the digest took longer than {timeout_seconds:.0f} s")


def _check(report: dict[str, Any], payload: WeightPayload, *, name: str) -> None:
    if report["digest"] != payload.digest:
        raise WeightSyncError(
            f"server {name} received other weights than version {payload.version}: expected digest {payload.digest} "
            f"({payload.num_tensors} tensors), got {report['digest']} ({report['num_tensors']} tensors); "
            "was a bucket lost, cut short or written over before the server read it?"
        )
