"""`Places`: the adapters that the servers hold at the same time. Saved adapters come and go, each into a place with a fixed name.

A server has a fixed number of places. What a place holds is exchanged by a weight sync, with its proof, only while no request is
computed with it; an adapter that was exchanged is loaded again, from where it was saved, when a request names it. Where all
weights are trained, a server has one place, for the whole model.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.errors import BadRequestError
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.sync.file_sync import FileSync
from vime.trainer.group import TrainerGroup
from vime.weights.payload import NO_VERSION
from vime.weights.policy import Policy


@dataclass(kw_only=True, slots=True)
class Place:
    """A place for an adapter, or a model, on every server."""

    name: str
    client: TokenClient
    key: str = ""
    """The adapter that it holds, or is being given; empty for none."""
    version: int = NO_VERSION
    num_users: int = 0
    last_used: int = 0
    is_loaded: bool = False


def place_names(config: RunConfig) -> list[str]:
    """The names of the places of a service, as adapters of its servers; one without a name where all weights are trained."""
    return [f"place{index}" for index in range(config.service.num_samplers)] if config.trainer.lora.rank else [""]


class Places:
    """All places of the servers of a service, and the base model beside them."""

    def __init__(self, config: RunConfig, serving: Serving, trainer: TrainerGroup, policy: Policy) -> None:
        self._trainer, self._files = trainer, FileSync(serving, trainer, config, policy)
        endpoint = serving.trained_endpoint()
        self._base = TokenClient(replace(endpoint, adapter=""), config.serving)
        self._places = [
            Place(name=name, client=TokenClient(replace(endpoint, adapter=name or None), config.serving))
            for name in place_names(config)
        ]
        self._changed, self._sending = asyncio.Condition(), asyncio.Lock()
        self._version = self._num_uses = 0

    @asynccontextmanager
    async def base(self) -> AsyncIterator[tuple[TokenClient, int]]:
        """A client of the base model, and the oldest version of the weights that it takes."""
        yield self._base, NO_VERSION

    @asynccontextmanager
    async def held(self, key: str, saved: Path) -> AsyncIterator[tuple[TokenClient, int]]:
        """The same of the weights of a key, which are loaded from `saved` if no place holds them.

        They keep their place within the block. Raises WeightSyncError, ServerError.
        """
        place = await self._taken(key)
        try:
            if not place.is_loaded:
                await self._load(place, saved)
            yield place.client, place.version
        finally:
            async with self._changed:
                place.num_users -= 1
                if not place.is_loaded and not place.num_users:
                    place.key = ""
                self._changed.notify_all()

    async def renew(self, key: str, saved: Path) -> None:
        """Sends a newer version to the place that holds a key, if one does; requests in flight go on under it."""
        async with self._sending:
            for place in self._places:
                if place.key == key and place.is_loaded:
                    await self._send(place, saved)

    async def forget(self, key: str) -> None:
        """Leaves the place of a key, which is not asked for any more, to others."""
        async with self._changed:
            for place in self._places:
                if place.key == key and not place.num_users:
                    place.key, place.is_loaded = "", False
            self._changed.notify_all()

    def shown(self) -> list[dict[str, Any]]:
        """Each place with the key that it holds and the number of requests that use it."""
        return [{"name": place.name, "holds": place.key, "num_users": place.num_users} for place in self._places]

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(self._base.close(), *[place.client.close() for place in self._places])

    async def _taken(self, key: str) -> Place:
        """The place of a key, with one more user; waits until one is free, and takes that which was not used for longest."""
        async with self._changed:
            while True:
                held = [place for place in self._places if place.key == key]
                free = [place for place in self._places if not place.num_users]
                if held or free:
                    place = held[0] if held else min(free, key=lambda each: (bool(each.key), each.last_used))
                    if not held:
                        place.key, place.is_loaded = key, False
                    place.num_users += 1
                    self._num_uses += 1
                    place.last_used = self._num_uses
                    return place
                await self._changed.wait()

    async def _load(self, place: Place, saved: Path) -> None:
        async with self._sending:
            if not place.is_loaded:  # else another request has waited for it, too
                await self._send(place, saved)
                place.is_loaded = True

    async def _send(self, place: Place, saved: Path) -> None:
        if not saved.exists():
            raise BadRequestError("the weights of this sampler are gone, as many newer ones have been saved: give it a name")
        self._version += 1
        payload = await self._trainer.export_saved(saved, name=place.name, version=self._version)
        await self._files.send(payload)
        place.version = payload.version
