"""Trainer and servers that share GPUs: who has the memory, and the order in which it changes hands.

    generate  servers awake, trainer in main memory
    train     servers asleep, trainer on the GPU
    sync      optimizer and gradients leave, and what PyTorch has cached; the servers get memory for their weights, then the
              weights; what the export has cached leaves; the KV cache returns; the probe compares; the trainer's weights leave;
              servers that are down start again

Where they share nothing (GPUs apart, or none), every call but the one that sends returns at once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Servers(Protocol):
    """What sleeps and wakes (`vime.serving.topology.Serving`)."""

    async def sleep(self, *, keep_weights: bool) -> None: ...
    async def wake(self) -> None: ...
    async def may_start(self) -> None: ...


class Trainer(Protocol):
    """What leaves the GPU and comes back (`vime.trainer.group.TrainerGroup`)."""

    async def offload(self, *, weights: bool) -> None: ...
    async def onload(self) -> None: ...


class Turns:
    """Whose turn it is. A run begins with the trainer's, servers asleep; `send` and then `to_servers` make it the servers'."""

    def __init__(self, servers: Servers, trainer: Trainer, *, shared: bool) -> None:
        self._servers, self._trainer, self._shared = servers, trainer, shared
        self._trainers = True

    async def to_trainer(self, *, keep_weights: bool = False) -> None:
        """The trainer can work. Without `keep_weights` the servers' weights are gone: a sync must follow."""
        if self._shared and not self._trainers:
            await self._servers.sleep(keep_weights=keep_weights)
            await self._trainer.onload()
        self._trainers = True

    async def send(self, send: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        """Has `send` bring the weights to the servers, which can generate afterwards; the trainer still has its weights.

        Everything else of the trainer's has left before the servers take memory for theirs. Returns what `send` returns.
        """
        if not self._shared:
            return await send()
        await self.to_trainer()
        await self._trainer.offload(weights=False)
        metrics = await send()
        await self._trainer.offload(weights=False)  # gathered tensors and buckets lie in PyTorch's cache
        await self._servers.wake()
        return metrics

    async def to_servers(self) -> None:
        """The trainer leaves altogether, and servers that are down may take its memory to start again."""
        if self._shared:
            self._trainers = False
            await self._trainer.offload(weights=True)
            await self._servers.may_start()

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
                await self._servers.may_start()
