"""Brings a payload of weights in files to every server of the trained model, and keeps the files for those that are down."""

import asyncio
import logging
import time
from pathlib import Path

import aiohttp
from ray.exceptions import RayActorError

from vime.config import RunConfig
from vime.errors import ServerError, WeightSyncError
from vime.serving.control import apply_payload
from vime.serving.topology import Serving
from vime.weights import SYNC_TIMEOUT_SECONDS, WeightPayload

logger = logging.getLogger(__name__)


class WeightSync:
    """Syncs one version after the other; all servers of the trained model at once."""

    def __init__(self, serving: Serving, config: RunConfig, run_id: str) -> None:
        self._endpoint = serving.trained_endpoint()
        self._serving = serving
        self._previous: WeightPayload | None = None
        self._run_id = run_id
        self._keep_cache = config.serving.keep_cache

    async def sync(self, payload: WeightPayload) -> dict[str, float]:
        """Pauses, updates, checks and resumes every server; a server that is down gets the payload when it comes back.

        Raises WeightSyncError if a server received other bytes, ServerError if one was given up.
        """
        started = time.monotonic()
        self._serving.expect(payload.version, payload)
        actors = self._serving.actors(self._endpoint.name)
        if actors:
            calls = [actor.sync.remote(payload) for actor in actors.values()]
        else:
            keep_cache = self._keep_cache and self._previous is not None  # at first it holds what earlier runs left there
            calls = [_apply_external(url, payload, keep_cache=keep_cache) for url in self._endpoint.worker_urls]
        results = await asyncio.gather(*calls, return_exceptions=True)
        synced: list[dict[str, float]] = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RayActorError):  # its successor gets the payload
                raise plain_error(result)
            if isinstance(result, dict) and result:
                synced.append(result)
        logger.info("run %s: version %d is on %d of %d servers", self._run_id, payload.version, len(synced), len(results))
        self._forget_previous(payload)  # this one stays: a server that restarts reads it again
        return {
            "sync/seconds": time.monotonic() - started,
            "sync/pause_seconds": max((result["pause_seconds"] for result in synced), default=0.0),
            "sync/bytes": float(payload.num_bytes),
            "sync/num_servers": float(len(synced)),
            "sync/export_seconds": payload.export_seconds,
        }

    def _forget_previous(self, payload: WeightPayload) -> None:
        kept = set(payload.files)
        for file in self._previous.files if self._previous is not None else ():
            if file not in kept:
                Path(file).unlink(missing_ok=True)
        self._previous = payload


async def _apply_external(url: str, payload: WeightPayload, *, keep_cache: bool) -> dict[str, float]:
    name, seconds = "external server", SYNC_TIMEOUT_SECONDS
    async with aiohttp.ClientSession() as session:
        return await apply_payload(session, url, payload, name=name, timeout_seconds=seconds, keep_cache=keep_cache)


def plain_error(error: BaseException) -> BaseException:
    """The error without Ray's wrapping, whose message is a remote traceback."""
    for kind in (WeightSyncError, ServerError):
        if isinstance(error, kind):
            return kind(str(getattr(error, "cause", error)))
    return error
