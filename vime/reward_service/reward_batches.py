"""Gathers the rollouts of a process into batches for a reward service, and makes callers wait while too many are pending."""

import asyncio
from contextlib import suppress
from typing import Any

from vime.config import RewardServiceConfig
from vime.errors import RewardServiceError
from vime.reward_service.reward_client import RewardClient
from vime.types import Reward


class RewardBatches:
    """Gathers one batch at a time, and sends it when it is full, or when its first item has waited long enough.

    At most `max_pending` items are waiting or being scored; further callers wait before the queue. A caller that is cancelled
    leaves the queue. The failure of a whole batch is raised for each of its callers, the failure of one item for its caller only.
    """

    def __init__(self, config: RewardServiceConfig, client: RewardClient, *, num_workers: int = 1) -> None:
        self._config, self._client = config, client
        self._room = asyncio.Semaphore(config.max_pending)
        self._sending = asyncio.Semaphore(max(1, config.max_concurrent_requests // num_workers))
        self._waiting: dict[asyncio.Future[Reward], dict[str, Any]] = {}
        self._full = asyncio.Event()
        self._gathering: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[None]] = set()

    @property
    def num_waiting(self) -> int:
        """Number of items that are not in a request yet."""
        return len(self._waiting)

    async def score(self, item: dict[str, Any]) -> Reward:
        """The reward of one item. Raises RewardServiceError."""
        async with self._room:
            future: asyncio.Future[Reward] = asyncio.get_running_loop().create_future()
            self._waiting[future] = item
            if len(self._waiting) >= self._config.max_batch_size:
                self._full.set()
            if self._gathering is None or self._gathering.done():
                self._gathering = asyncio.create_task(self._gather())
            try:
                return await future
            finally:
                self._waiting.pop(future, None)

    async def _gather(self) -> None:
        """Sends batches as long as items are waiting."""
        while self._waiting:
            if len(self._waiting) < self._config.max_batch_size:
                self._full.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._config.max_batch_wait_seconds)
            await self._sending.acquire()
            batch = dict(list(self._waiting.items())[: self._config.max_batch_size])
            for future in batch:
                del self._waiting[future]
            request = asyncio.create_task(self._send(batch))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _send(self, batch: dict["asyncio.Future[Reward]", dict[str, Any]]) -> None:
        found: list[Reward | RewardServiceError]
        try:
            found = [*(await self._client.score(list(batch.values())))] if batch else []
        except Exception as error:  # handed to everybody who waits for this batch: none of them may wait for ever
            found = [RewardServiceError(str(error)) if not isinstance(error, RewardServiceError) else error for _ in batch]
        finally:
            self._sending.release()
        for future, reward in zip(batch, found, strict=True):
            if future.done():
                continue  # its caller gave up
            if isinstance(reward, Reward):
                future.set_result(reward)
            else:
                future.set_exception(type(reward)(str(reward)))  # its own: a traceback grows with each that raises it
