"""Trainer and servers that share GPUs: who has the memory, and the order in which it changes hands.

    generate  servers awake, trainer in main memory
    train     servers asleep, trainer on the GPU
    sync      servers get memory for their weights, then the weights; the optimizer leaves; the KV cache returns; the probe
              compares; the trainer's weights leave

Where they share nothing (GPUs apart, or none), every call returns at once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Servers(Protocol):
    """What sleeps and wakes (`vime.serving.topology.Serving`)."""

    async def sleep(self, *, keep_weights: bool) -> None: ...
    async def wake(self) -> None: ...


class Trainer(Protocol):
    """What leaves the GPU and comes back (`vime.trainer.group.TrainerGroup`)."""

    async def offload(self, *, weights: bool) -> None: ...
    async def onload(self) -> None: ...


class Turns:
    """Whose turn it is. A run begins with the trainer's, servers asleep, and a sync makes it the servers'."""

    def __init__(self, servers: Servers, trainer: Trainer, *, shared: bool) -> None:
        self._servers, self._trainer, self._shared = servers, trainer, shared
        self._trainers = True

    async def to_trainer(self, *, keep_weights: bool = False) -> None:
        """The trainer can work. Without `keep_weights` the servers' weights are gone: a sync must follow."""
        if self._shared and not self._trainers:
            await self._servers.sleep(keep_weights=keep_weights)
            await self._trainer.onload()
        self._trainers = True

    async def to_servers(self, *, probe: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        """After a sync: the servers can generate. Returns what `probe` says, which runs while the trainer has its weights."""
        if not self._shared:
            return await probe()
        await self._trainer.offload(weights=False)
        await self._servers.wake()
        metrics = await probe()
        self._trainers = False
        await self._trainer.offload(weights=True)
        return metrics

    @asynccontextmanager
    async def trainer(self) -> AsyncIterator[None]:
        """The trainer can work inside (to save, say); whoever had the turn has it again afterwards, with the same weights."""
        if not self._shared or self._trainers:
            yield
            return
        try:
            await self.to_trainer(keep_weights=True)
            yield
        finally:
            self._trainers = False
            try:
                await self._trainer.offload(weights=True)
            finally:
                await self._servers.wake()
