"""Delivers the trainer's weights: sends each new version and compares it, and gives a restarted server the current one."""

import asyncio
import logging
from functools import partial

from ray.exceptions import RayActorError

from vime.cluster.placement import DIRECT, transport
from vime.config import Precision, RunConfig, TrainedQuantization
from vime.serving.quantization import is_approximate
from vime.serving.topology import Serving
from vime.sync.colocation import Colocation
from vime.sync.direct_sync import DirectSync
from vime.sync.file_sync import FileSync, give
from vime.sync.probe import Tolerance, probe
from vime.tasks import cancel
from vime.trainer.group import TrainerGroup
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)


class WeightDelivery:
    """Delivers weights from one trainer to the servers of the trained model."""

    def __init__(
        self, config: RunConfig, serving: Serving, trainer: TrainerGroup, colocation: Colocation, policy: Policy
    ) -> None:
        self._config, self._serving, self._trainer = config, serving, trainer
        self._colocation, self._policy = colocation, policy
        self._files = FileSync(serving, trainer, config, policy)
        self._direct = DirectSync(serving, trainer, policy) if transport(config) in DIRECT else None
        self._probing: asyncio.Task[dict[str, float]] | None = None

    async def sync(self, version: int) -> dict[str, float]:
        """Sends the weights and, if `sync/num_servers` is not 0, starts the probe; `compared` returns its result.

        On shared GPUs the probe has finished by the time this returns, because the servers run next. Raises WeightSyncError or
        ServerError, including those of an earlier probe that was not awaited.
        """
        await self.compared()
        self._probing = None
        metrics = await self._colocation.send(partial(self.send, version))
        if metrics["sync/num_servers"]:
            # The trainer is free meanwhile: the probe waits for a server that has just been lost, and that one for its weights.
            self._probing = asyncio.create_task(self.probe(version))
        if self._colocation.shared:
            await self.compared()
            await self._colocation.to_servers()
        return metrics

    async def compared(self) -> dict[str, float]:
        """Waits for the probe of the last sync, and returns its metrics: `probe/…`.

        Raises WeightSyncError if a server and the trainer disagree, ServerError if none answered.
        """
        return {} if self._probing is None else await asyncio.shield(self._probing)

    async def stop(self) -> None:
        """Cancels a probe whose result is no longer needed."""
        if self._probing is not None:
            await cancel([self._probing])

    async def send(self, version: int) -> dict[str, float]:
        """Sends the trainer's weights to all servers that are up."""
        return await (self._direct or self._files).sync(version)

    async def probe(self, version: int) -> dict[str, float]:
        """Compares the servers that got `version` with the trainer; a server that was down is in the next probe."""
        config, sync = self._config, self._direct or self._files
        # where both round to the same integers, the smallest difference may round to the next one: as far apart as in bfloat16
        rounds = config.trainer.quantization is TrainedQuantization.int8
        return await probe(
            self._serving.trained_endpoint(only=sync.holders),
            partial(self._trainer.logprobs, temperature=config.rollout.temperature),
            temperature=config.rollout.temperature,
            tolerance=Tolerance.of(
                Precision.bfloat16 if rounds else config.trainer.precision,
                config.serving.probe_tolerance,
                has_experts=config.model.num_experts > 0,
                is_quantized=any(model.trained and is_approximate(config, model) for model in config.serving.models.values()),
            ),
            vocab_size=config.model.vocab_size,
            seed=config.seed,
            minimum_version=version,
            serving=config.serving,
        )

    async def restore(self, name: str) -> None:
        """Gives a server that has started again the current weights as files, again and again, until its place is lost.

        One that joins asks for them too, if the last sync has left no files.
        """
        place = self._serving.program(name)
        while not place.lost:
            try:
                if (actor := place.actor) is not None:
                    await actor.wants_weights.remote()
                    await give(actor, name, self._policy, trainer_awake=self._colocation.awake)
                    continue
            except RayActorError:
                pass
            await asyncio.sleep(1.0)  # until there is another, which asks again
