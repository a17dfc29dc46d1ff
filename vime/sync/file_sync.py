"""Brings weights in files to every server of the trained model, and keeps the files for those that are down."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import RayActorError

from vime.config import RunConfig
from vime.errors import ServerError, describe
from vime.model import adapter_folder
from vime.processes.control import UNREACHABLE
from vime.processes.secret import given_secret, headers
from vime.serving.topology import Serving, reach
from vime.trainer.group import TrainerGroup
from vime.weights.payload import SYNC_TIMEOUT_SECONDS, WeightPayload
from vime.weights.policy import Policy
from vime.weights.update import LACKS, OF_THE_SLOWEST, apply_payload

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""Wait after a failed export for a restarted server, for example on a full disk."""


TrainerAwake = Callable[[], AbstractAsyncContextManager[TrainerGroup]]
"""The trainer, able to work within the block, also while the servers have the GPUs (`Colocation.awake`)."""


class FileSync:
    """Syncs one version after the other; all servers of the trained model at once."""

    def __init__(self, serving: Serving, trainer: TrainerGroup, config: RunConfig, policy: Policy) -> None:
        self._endpoint = serving.trained_endpoint()
        self._serving, self._trainer, self._policy = serving, trainer, policy
        self._keep_cache = config.serving.keep_cache
        self.holders: set[str] | None = None
        """The servers that got the last version; None is all, of external ones."""

    async def sync(self, version: int) -> dict[str, float]:
        """Exports the weights, then sends them. Raises what `send` raises."""
        return await self.send(await self._trainer.export_weights(version))

    async def send(self, payload: WeightPayload) -> dict[str, float]:
        """Pauses, updates, checks and resumes every server; one that is down gets the weights when it is back.

        A server that cannot make a version of its difference is sent the whole one. Raises WeightSyncError if a server received
        other bytes, ServerError if one was given up, or is external and lost.
        """
        started = time.monotonic()
        previous = self._policy.payloads.get(payload.adapter)
        self._policy.expect(payload.version, payload)
        self._serving.check()
        actors = self._serving.actors(self._endpoint.name)
        if actors:
            calls = [actor.sync.remote(payload) for actor in actors.values()]
        else:
            keep_cache = self._keep_cache and previous is not None  # at first it holds what earlier runs left there
            calls = [_apply_external(url, payload, keep_cache=keep_cache) for url in self._endpoint.worker_urls]
        results = await reach(calls)  # the successor of one that is gone gets the payload
        num_bytes, num_lacking = payload.num_bytes, sum(LACKS in (result or {}) for result in results)
        if num_lacking:
            whole = await self._trainer.export_weights(payload.version, is_whole=True)
            num_bytes += whole.num_bytes
            named = list(zip(actors.values(), results, strict=True))
            again = iter(await reach([actor.sync.remote(whole) for actor, result in named if LACKS in (result or {})]))
            results = [next(again) if LACKS in (result or {}) else result for result in results]
        synced = [result for result in results if result]
        self.holders = {name for name, result in zip(actors, results) if result} if actors else None
        logger.info("version %d is on %d of %d servers", payload.version, len(synced), len(results))
        for file in map(Path, set(previous.files if previous is not None else ()) - set(payload.files)):
            file.unlink(missing_ok=True)  # the new ones stay: a server that restarts reads them again
            if file.name == adapter_folder.WEIGHTS:  # the folder of an adapter, which holds nothing else
                shutil.rmtree(file.parent, ignore_errors=True)
        return {
            "sync/seconds": time.monotonic() - started,
            **{
                f"sync/{name}": max((result[name] for result in synced), default=0.0)
                for name in ("check_seconds", *OF_THE_SLOWEST)
            },
            "sync/bytes": float(num_bytes),
            "sync/num_lacking_servers": float(num_lacking),
            "sync/num_servers": float(len(synced)),
            "sync/export_seconds": payload.export_seconds,
        }


async def give(actor: Any, name: str, policy: Policy, *, trainer_awake: TrainerAwake) -> None:
    """Sends a server's actor the version of now, until that succeeds or the server is given up; raises RayActorError."""
    while True:
        try:
            async with trainer_awake() as trainer:
                payload = await trainer.export_weights(policy.trained_version, is_whole=True)
            logger.info("%s gets version %d as files", name, payload.version)
            await actor.sync.remote(payload)
            return
        except RayActorError:
            raise
        except ServerError:
            return  # it was given up, which the next sync says
        except Exception:  # one server waits for its weights; the run goes on with the others
            logger.warning("%s could not be given its weights, next try in %.0f s", name, RETRY_SECONDS, exc_info=True)
            await asyncio.sleep(RETRY_SECONDS)


async def _apply_external(url: str, payload: WeightPayload, *, keep_cache: bool) -> dict[str, float]:
    """Updates an external server; if it is lost the run ends, because a restart without the weights would go unnoticed."""
    name, seconds = "external server", SYNC_TIMEOUT_SECONDS
    try:
        async with aiohttp.ClientSession(headers=headers(given_secret())) as session:
            return await apply_payload(session, url, payload, name=name, timeout_seconds=seconds, keep_cache=keep_cache)
    except UNREACHABLE as error:
        raise ServerError(
            f"{url} could not be given version {payload.version} of the weights ({describe(error)}): start it again, then "
            "resume=true goes on from the last checkpoint"
        ) from error
