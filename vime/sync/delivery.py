"""Delivers the trainer's weights: sends each new version and verifies it, and gives a restarted server the current one."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from ray.exceptions import RayActorError

from vime.cluster.placement import DIRECT, transport
from vime.config import Precision, RunConfig
from vime.errors import ServerError
from vime.serving.topology import Serving
from vime.sync.direct_sync import DirectSync
from vime.sync.file_sync import FileSync
from vime.sync.probe import probe
from vime.sync.turns import Turns
from vime.trainer.group import TrainerGroup
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)

TrainerAwake = Callable[[], AbstractAsyncContextManager[TrainerGroup]]
"""The trainer, able to work within the block, also while the servers have the GPUs (`Turns.awake`)."""

PROBE_TOLERANCE = {Precision.float32: 1e-4, Precision.bfloat16: 0.3}
"""In nats. With the same bfloat16 weights, trainer and vLLM differed by up to 0.15 on the CPU."""
RETRY_SECONDS = 10.0
"""Wait after a failed export for a restarted server, for example on a full disk."""


class WeightDelivery:
    """Delivers weights from one trainer to the servers of the trained model."""

    def __init__(
        self, config: RunConfig, serving: Serving, trainer: TrainerGroup, turns: Turns[TrainerGroup], policy: Policy
    ) -> None:
        self._config, self._serving, self._trainer = config, serving, trainer
        self._turns, self._policy = turns, policy
        self._files = FileSync(serving, config, policy)
        self._direct = DirectSync(serving, trainer, policy) if transport(config) in DIRECT else None

    async def sync(self, version: int) -> dict[str, float]:
        """Sends and, if `sync/num_servers` were reached, probes; afterwards the servers have the turn, also those that are down.

        Raises WeightSyncError or ServerError.
        """
        metrics = await self._turns.send(partial(self.send, version))
        if metrics["sync/num_servers"]:
            # The trainer is free meanwhile: the probe waits for a server that has just been lost, and that one for its weights.
            metrics |= await self.probe(version)
        await self._turns.to_servers()
        return metrics

    async def send(self, version: int) -> dict[str, float]:
        """Sends the trainer's weights to all servers that are up."""
        if self._direct is not None:
            return await self._direct.sync(version)
        return await self._files.sync(await self._trainer.export_weights(version))

    async def probe(self, version: int) -> dict[str, float]:
        """Compares the servers that got `version` with the trainer; one that was down meanwhile is in the next probe."""
        config, sync = self._config, self._direct or self._files
        return await probe(
            self._serving.trained_endpoint(only=sync.holders),
            partial(self._trainer.logprobs, temperature=config.rollout.temperature),
            temperature=config.rollout.temperature,
            tolerance=config.serving.probe_tolerance or PROBE_TOLERANCE[config.trainer.precision],
            vocab_size=config.model.vocab_size,
            seed=config.seed,
            minimum_version=version,
            serving=config.serving,
        )

    async def restore(self, name: str) -> None:
        """Gives a restarted server the current weights as files, again and again, until no more actor takes its place."""
        model = self._serving.trained_endpoint().name
        while (actor := self._serving.actors(model).get(name)) is not None:
            try:
                await actor.wants_weights.remote()
                await give(actor, name, self._policy, trainer_awake=self._turns.awake)
            except RayActorError:
                await asyncio.sleep(1.0)  # until it has a successor, which asks again


async def give(actor: Any, name: str, policy: Policy, *, trainer_awake: TrainerAwake) -> None:
    """Sends a server's actor the version of now, until that succeeds or the server is given up; raises RayActorError."""
    while True:
        try:
            async with trainer_awake() as trainer:
                payload = await trainer.export_weights(policy.trained_version)
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
