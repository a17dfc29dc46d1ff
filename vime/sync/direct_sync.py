"""Sends weights to the servers without files: the trainer sends to all servers at once, process to process.

A server that is down meanwhile, or was lost on the way, asks for weights when it is back: it then gets files.
"""

import asyncio
import logging
import time
from typing import Any

from ray.exceptions import RayTaskError

from vime.errors import ServerError, WeightSyncError
from vime.serving.topology import Serving, reach
from vime.trainer.group import TrainerGroup
from vime.weights.payload import SYNC_TIMEOUT_SECONDS, WeightPayload
from vime.weights.policy import Policy
from vime.weights.update import OF_THE_SLOWEST

logger = logging.getLogger(__name__)


class DirectSync:
    """Sends one version after the other to the servers of the trained model."""

    def __init__(self, serving: Serving, trainer: TrainerGroup, policy: Policy) -> None:
        self._serving, self._trainer, self._policy = serving, trainer, policy
        self._name = serving.trained_endpoint().name
        self._connected: dict[str, int] = {}
        self.holders: set[str] = set()
        """The servers that got the last version."""

    async def sync(self, version: int) -> dict[str, float]:
        """Stops every server between two tokens, sends the weights, checks them on arrival, and lets the servers go on.

        If the transfer breaks, the servers that took part are started again and get files. Raises WeightSyncError if a
        server received other bytes or the transfer took longer than `SYNC_TIMEOUT_SECONDS`, ServerError if one was given up.
        """
        started = time.monotonic()
        self._policy.expect(version)
        self._serving.check()
        actors = self._serving.actors(self._name)
        launches = await _all(actors, "begin_update", version)
        present = {name: launch for name, launch in launches.items() if launch}
        updating = {name: actors[name] for name in present}  # these very ones: an actor made meanwhile has begun nothing
        sent = WeightPayload(version=version)
        self.holders = set()
        if present:
            try:
                sent = await asyncio.wait_for(self._send(present, version), SYNC_TIMEOUT_SECONDS)
            except TimeoutError:
                raise WeightSyncError(
                    f"sending version {version} took longer than {SYNC_TIMEOUT_SECONDS:.0f} s: a server or the network hangs; "
                    "resume=true goes on from the last checkpoint"
                ) from None
            except (RayTaskError, ServerError) as error:  # it broke on the way: servers hold half of it and start again
                logger.warning("sending version %d failed, the servers start again: %r", version, error)
                self._connected = {}
                await _all(updating, "fail_update", repr(error))
                return self._metrics(started, sent, [])
        synced = {name: result for name, result in (await _all(updating, "end_update", sent)).items() if result}
        self.holders = set(synced)
        return self._metrics(started, sent, list(synced.values()))

    async def _send(self, present: dict[str, int], version: int) -> WeightPayload:
        """Opens the transport anew if servers came, went or were started again, and sends."""
        if present != self._connected:
            workers = self._serving.workers(self._name)
            urls, sizes = [workers[name][0] for name in present], [workers[name][1] for name in present]
            await self._trainer.connect(urls, sizes, self._serving.secret)
            self._connected = present
        return await self._trainer.send_weights(version)

    def _metrics(self, started: float, sent: WeightPayload, synced: list[dict[str, float]]) -> dict[str, float]:
        logger.info("version %d is on %d of %d servers", sent.version, len(synced), len(self._serving.actors(self._name)))
        return {
            "sync/seconds": time.monotonic() - started,
            **{f"sync/{name}": max((result[name] for result in synced), default=0.0) for name in OF_THE_SLOWEST},
            "sync/bytes": float(sent.num_bytes),
            "sync/num_servers": float(len(synced)),
            "sync/export_seconds": sent.export_seconds,
        }


async def _all(actors: dict[str, Any], method: str, *arguments: Any) -> dict[str, Any]:
    """The servers' answers by name; None for one whose actor is gone, because its successor asks for weights."""
    results = await reach([getattr(actor, method).remote(*arguments) for actor in actors.values()])
    return dict(zip(actors, results, strict=True))
