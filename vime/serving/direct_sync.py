"""Brings weights to the servers without files: the trainer sends to all servers at once, process to process.

A server that is down meanwhile, or was lost on the way, asks for weights when it is back: it then gets files.
"""

import asyncio
import logging
import time
from typing import Any, Protocol

from ray.exceptions import RayTaskError

from vime.config import RunConfig
from vime.errors import WeightSyncError
from vime.serving.topology import Serving
from vime.serving.weight_sync import plain_error
from vime.weights import SYNC_TIMEOUT_SECONDS, WeightPayload

logger = logging.getLogger(__name__)


class Sender(Protocol):
    """The trainer's side (`vime.trainer.group.TrainerGroup`)."""

    async def connect(self, urls: list[str], num_workers: list[int]) -> None: ...
    async def send_weights(self, version: int) -> WeightPayload: ...


class DirectSync:
    """Sends one version after the other to the servers of the trained model."""

    def __init__(self, serving: Serving, config: RunConfig, sender: Sender) -> None:
        self._endpoint = serving.trained_endpoint()
        self._actors = serving.actors(self._endpoint.name)
        self._sender = sender
        self._connected: dict[str, int] = {}
        size = config.serving.models[self._endpoint.name].tensor_parallel_size
        self._workers = dict.fromkeys(self._actors, size)

    async def sync(self, version: int) -> dict[str, float]:
        """Stops every server between two tokens, sends, checks what arrived, and goes on.

        If the transfer breaks, the servers that took part are started again and get files. Raises WeightSyncError if a
        server received other bytes or the transfer took longer than `SYNC_TIMEOUT_SECONDS`, ServerError if one was given up.
        """
        started = time.monotonic()
        launches = await self._all("begin_update", version)
        present = {name: launch for name, launch in launches.items() if launch}
        sent = WeightPayload(version=version)
        if present:
            try:
                await self._connect(present)
                sent = await asyncio.wait_for(self._sender.send_weights(version), SYNC_TIMEOUT_SECONDS)
            except asyncio.TimeoutError:
                raise WeightSyncError(
                    f"sending version {version} took longer than {SYNC_TIMEOUT_SECONDS:.0f} s: a server or the network hangs; "
                    "resume=true goes on from the last checkpoint"
                ) from None
            except RayTaskError as error:  # it broke on the way: servers hold half of it and start again
                logger.warning("sending version %d failed, the servers start again: %r", version, error)
                self._connected = {}
                await self._all("fail_update", repr(error), only=present)
                return self._metrics(started, sent, [])
        synced = await self._all("end_update", sent, only=present)
        return self._metrics(started, sent, [result for result in synced.values() if result])

    async def _connect(self, present: dict[str, int]) -> None:
        """Opens the transport anew if servers came, went or were started again."""
        if present == self._connected:
            return
        urls = dict(zip(self._actors, self._endpoint.worker_urls, strict=True))
        await self._sender.connect([urls[name] for name in present], [self._workers[name] for name in present])
        self._connected = present

    async def _all(self, method: str, *arguments: Any, only: dict[str, Any] | None = None) -> dict[str, Any]:
        names = list(self._actors if only is None else only)
        calls = [getattr(self._actors[name], method).remote(*arguments) for name in names]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise plain_error(result)
        return dict(zip(names, results))

    def _metrics(self, started: float, sent: WeightPayload, synced: list[dict[str, float]]) -> dict[str, float]:
        logger.info("version %d is on %d of %d servers", sent.version, len(synced), len(self._actors))
        return {
            "sync/seconds": time.monotonic() - started,
            "sync/pause_seconds": max((result["pause_seconds"] for result in synced), default=0.0),
            "sync/bytes": float(sent.num_bytes),
            "sync/num_servers": float(len(synced)),
            "sync/export_seconds": sent.export_seconds,
        }
