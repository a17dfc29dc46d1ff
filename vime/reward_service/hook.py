"""The reward hook that asks a service: `method.reward=vime.reward_service.hook.reward reward_service.url=http://…`."""

import asyncio
from weakref import WeakKeyDictionary

from vime.config import RunConfig
from vime.reward_service.reward_batches import RewardBatches
from vime.reward_service.reward_client import RewardClient
from vime.reward_service.wire_format import item_of
from vime.rollout.context import Context
from vime.types import Reward, Sample

_batches: "WeakKeyDictionary[asyncio.AbstractEventLoop, RewardBatches]" = WeakKeyDictionary()
"""One queue for all rollouts of a worker, which are the tasks of one event loop."""


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The reward that the service gives one rollout. Raises RewardServiceError."""
    return await _of_this_loop(context.config).score(item_of(samples))


def _of_this_loop(config: RunConfig) -> RewardBatches:
    loop = asyncio.get_running_loop()
    if loop not in _batches:
        settings, num_workers = config.reward_service, config.rollout.num_workers
        _batches[loop] = RewardBatches(settings, RewardClient(settings, share=1 / num_workers), num_workers=num_workers)
    return _batches[loop]
