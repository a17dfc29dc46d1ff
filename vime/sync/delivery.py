"""Delivers the trainer's weights: sends each new version and compares it, and gives a restarted server the current one."""

import asyncio
import logging
from functools import partial

from ray.exceptions import RayActorError

from vime.cluster.placement import DIRECT, takes_turns, transport
from vime.config import RunConfig
from vime.serving.topology import Serving
from vime.sync.direct_sync import DirectSync
from vime.sync.file_sync import FileSync, give
from vime.sync.probe import Tolerance, probe
from vime.sync.turns import Turns
from vime.tasks import cancel
from vime.trainer.group import TrainerGroup
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)


def goes_on_beside_training(config: RunConfig) -> bool:
    """Whether a sync only holds up the trainer until its weights are in files, and goes on beside the next batch's gradient.

    That gains time where the next batch may hold tokens of earlier weights, so that it need not wait for the servers. A
    producer of the user (`rollout.producer`) is told of weights only when the servers hold them.
    """
    ahead = config.rollout.max_staleness > 0 and config.rollout.producer is None
    return ahead and transport(config) not in DIRECT and not takes_turns(config)


class WeightDelivery:
    """Delivers weights from one trainer to the servers of the trained model."""

    def __init__(
        self, config: RunConfig, serving: Serving, trainer: TrainerGroup, turns: Turns[TrainerGroup], policy: Policy
    ) -> None:
        self._config, self._serving, self._trainer = config, serving, trainer
        self._turns, self._policy = turns, policy
        self._files = FileSync(serving, trainer, config, policy)
        self._direct = DirectSync(serving, trainer, policy) if transport(config) in DIRECT else None
        self._probing: asyncio.Task[dict[str, float]] | None = None

    async def export(self, version: int) -> WeightPayload:
        """Writes the trainer's weights as files, which `sync` then brings to the servers without the trainer."""
        async with self._turns.awake() as trainer:
            return await trainer.export_weights(version)

    async def sync(self, version: int, payload: WeightPayload | None = None) -> dict[str, float]:
        """Sends and, if `sync/num_servers` were reached, begins to probe: `compared` has the result.

        Of servers that share the trainer's GPUs the probe is over, because they have the turn afterwards, also those that are
        down. Raises WeightSyncError or ServerError, also of an earlier probe that nobody has waited for.
        """
        await self.compared()
        self._probing = None
        send = partial(self.send, version, payload)
        metrics = await (send() if payload is not None else self._turns.send(send))
        if metrics["sync/num_servers"]:
            # The trainer is free meanwhile: the probe waits for a server that has just been lost, and that one for its weights.
            self._probing = asyncio.create_task(self.probe(version))
        if self._turns.shared:
            await self.compared()
            await self._turns.to_servers()
        return metrics

    async def compared(self) -> dict[str, float]:
        """Waits for the probe of the last sync, and returns its metrics: `probe/…`.

        Raises WeightSyncError if a server and the trainer disagree, ServerError if none answered.
        """
        return {} if self._probing is None else await asyncio.shield(self._probing)

    async def stop(self) -> None:
        """Ends a probe that nobody waits for any more."""
        if self._probing is not None:
            await cancel([self._probing])

    async def send(self, version: int, payload: WeightPayload | None = None) -> dict[str, float]:
        """Sends the trainer's weights, or the files of a payload, to all servers that are up."""
        if self._direct is not None:
            assert payload is None, "a direct transfer has no files"
            return await self._direct.sync(version)
        return await self._files.sync(version, payload)

    async def probe(self, version: int) -> dict[str, float]:
        """Compares the servers that got `version` with the trainer; one that was down meanwhile is in the next probe."""
        config, sync = self._config, self._direct or self._files
        return await probe(
            self._serving.trained_endpoint(only=sync.holders),
            partial(self._trainer.logprobs, temperature=config.rollout.temperature),
            temperature=config.rollout.temperature,
            tolerance=Tolerance.of(config.trainer.precision, config.serving.probe_tolerance),
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
