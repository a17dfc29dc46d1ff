"""Trainer and servers that share GPUs: who has the memory, and the order in which it changes hands.

    generate  servers awake, trainer in host memory
    train     servers asleep, trainer on the GPU
    sync      optimizer and gradients leave, and what PyTorch has cached; the servers get memory for their weights, then the
              weights; what the export has cached leaves; the KV cache returns; the probe compares; the trainer's weights leave;
              servers that are down start again

If they share no GPUs, every call but the one that sends returns at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from vime.serving.topology import Serving
from vime.trainer.group import TrainerGroup


class Colocation:
    """Tracks whether trainer or servers have the GPUs, and allows one user of the trainer at a time.

    A run begins with the trainer on the GPUs, servers asleep; `send` and then `to_servers` hand them to the servers.
    """

    def __init__(self, serving: Serving, trainer: TrainerGroup, *, shared: bool, lock: asyncio.Lock | None = None) -> None:
        """The `lock` is the trainer's, where several policies use it; then GPUs are not `shared`."""
        assert lock is None or not shared, "several policies take no turns with their servers"
        self._serving, self._trainer, self.shared = serving, trainer, shared
        self._lock = lock or asyncio.Lock()
        self._trainers = True

    @asynccontextmanager
    async def training(self) -> AsyncIterator[TrainerGroup]:
        """The trainer, able to train. Where it shares GPUs, the servers' weights are gone afterwards: `send` must follow."""
        async with self._lock:
            await self._to_trainer(keep_weights=False)
            yield self._trainer

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[TrainerGroup]:
        """The trainer, able to work, for example to save; the side that had the GPUs gets them back, with the same weights."""
        async with self._lock:
            if not self.shared or self._trainers:
                yield self._trainer
                return
            try:
                await self._to_trainer(keep_weights=True)
                yield self._trainer
            finally:
                self._trainers = False
                try:
                    await self._trainer.offload(weights=True)
                finally:
                    await self._serving.wake()
                    await self._serving.may_start()

    async def send(self, send: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        """Has `send` bring the weights to the servers, which can generate afterwards; the trainer still has its weights.

        All other memory of the trainer is freed before the servers allocate theirs. Returns the result of `send`.
        """
        async with self._lock:
            if not self.shared:
                return await send()
            await self._to_trainer(keep_weights=False)
            await self._trainer.offload(weights=False)
            metrics = await send()
            await self._trainer.offload(weights=False)  # gathered tensors and buckets lie in PyTorch's cache
            await self._serving.wake()
            return metrics

    async def to_servers(self) -> None:
        """Frees all of the trainer's memory on the GPUs; servers that are down may then start again."""
        if self.shared:
            async with self._lock:
                self._trainers = False
                await self._trainer.offload(weights=True)
                await self._serving.may_start()

    async def _to_trainer(self, *, keep_weights: bool) -> None:
        if self.shared and not self._trainers:
            await self._serving.sleep(keep_weights=keep_weights)
            await self._trainer.onload()
        self._trainers = True
