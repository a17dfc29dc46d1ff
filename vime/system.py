"""Parts of a run beside its driver: agents that generate, a learner that trains, or both and the way of the weights between.

    reinforcement learning   training(…)            -> Training
    of several adapters      training_adapters(…)   -> a Training for each
    supervised training      supervised(…)          -> Learner
    evaluation               evaluation(…)          -> Agents

Each is an async context manager; everything that it started is stopped at its end, even after an error or Ctrl-C.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from vime.cluster.placement import takes_turns
from vime.config import RunConfig
from vime.evaluation.pin import Pin
from vime.runtime import Runtime, running
from vime.serving.programs import SERVER
from vime.sync.colocation import Colocation
from vime.sync.delivery import WeightDelivery
from vime.sync.fleet import Fleet
from vime.sync.past_versions import PastVersions
from vime.tasks import stop_within, together
from vime.trainer.group import RANK, TrainerGroup
from vime.trainer.learner import Learner
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy
from vime.workers.agents import STOP_SECONDS, Agents, launched, served
from vime.workers.ray_worker import WORKER

logger = logging.getLogger(__name__)

Say = Callable[[str], None]


class Training(Learner):
    """A learner whose every version of the weights goes to the servers of its agents."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        trainer: TrainerGroup,
        agents: Agents,
        policy: Policy,
        *,
        say: Say,
        warn: Say,
        lock: asyncio.Lock | None = None,
    ) -> None:
        """The `lock` is the trainer's, where several policies use it."""
        super().__init__(config, run_dir, trainer, warn=warn)
        self.agents, self.policy = agents, policy
        self.usage = agents.workers.usage
        self.pin = Pin()
        """An evaluation that runs beside the generation: a sync waits for it."""
        self._config, self._say = config, say
        self._colocation = Colocation(agents.serving, self.trainer, shared=takes_turns(config), lock=lock)
        self._delivery = WeightDelivery(config, agents.serving, self.trainer, self._colocation, policy)
        self._past_versions = PastVersions(config, run_dir, agents.serving, self._colocation, policy)
        self.fleet = Fleet(config, run_dir, agents.serving, self._delivery, say=say, warn=warn)

    def watch(self) -> None:
        """Ensures from now on that a server that starts gets its weights, even between two syncs, and that there are as many
        servers as were asked for."""
        serving = self.agents.serving
        for place in serving.places(serving.trained_endpoint().name):
            self.agents.watches.add(self._delivery.restore(place.spec.name))
        if self._config.serving.elastic.num_at_start is not None:
            self.agents.watches.add(self.fleet.watch())

    def training(self) -> AbstractAsyncContextManager[TrainerGroup]:
        """The trainer, able to train, and used by no one else within the block.

        Servers that share the trainer's GPUs sleep until the next sync.
        """
        return self._colocation.training()

    def trained(self, version: int) -> None:
        """Notes that the trainer's weights are now this version, which a server that starts again is to get."""
        self.policy.trained_version = version

    def trainer_awake(self) -> AbstractAsyncContextManager[TrainerGroup]:
        """The trainer for exclusive use, able to work even while the servers have the GPUs (they sleep meanwhile)."""
        return self._colocation.awake()

    async def released(self) -> None:
        """Waits for the evaluation that pins the servers' weights, if there is one."""
        await self.pin.released()

    async def sync(self, version: int) -> dict[str, float]:
        """Brings the trainer's weights to the servers as `version`; `compared` waits for the probe of them.

        Agents at work go on under the new weights, or with `rollout.in_flight_updates=false` end their calls first. If no server
        was reached, it waits for one, for `serving.recovery_timeout_seconds`, and begins again. Raises `ServerError`,
        `WeightSyncError` if a server does not hold the weights afterwards, and the error that has ended the watch over the
        servers.
        """
        workers = self.agents.workers
        async with (
            workers.expecting_weights() if self._config.rollout.in_flight_updates else workers.held(),
            self.fleet.steady,
        ):
            return await self._sync(version)

    async def _sync(self, version: int) -> dict[str, float]:
        deadline = math.inf
        while True:
            self.agents.watches.check()
            self.policy.trained_version = version
            if (metrics := await self._delivery.sync(version))["sync/num_servers"]:
                return metrics | await self._past_versions.follow(version)
            self._say(f"version {version} of the weights reached no server: waiting for one to come back")
            deadline = min(deadline, time.monotonic() + self._config.serving.recovery_timeout_seconds)
            await self.agents.serving.until_one_is_ready(deadline=deadline)

    async def compared(self) -> dict[str, float]:
        """Waits for the probe of the last sync, which runs beside the work after the sync; see `WeightDelivery.compared`."""
        return await self._delivery.compared()

    async def metrics(self) -> dict[str, float]:
        """See `Agents.metrics`."""
        return await self.agents.metrics()

    async def events(self) -> list[dict[str, Any]]:
        """See `Agents.events`."""
        return await self.agents.events()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the probe, and then the learner."""
        await self._delivery.stop()
        await super().__aexit__(kind, error, traceback)


@asynccontextmanager
async def evaluation(config: RunConfig, run_dir: Path, *, say: Say) -> AsyncIterator[Agents]:
    """Agents of served models whose weights stay as they are."""
    async with running(config, say=say) as runtime:
        await runtime.spare.end(RANK)
        async with launched(config, run_dir, runtime, policy=None) as agents:
            await agents.ready(say)
            yield agents


@asynccontextmanager
async def supervised(config: RunConfig, run_dir: Path, *, say: Say, warn: Say = logger.warning) -> AsyncIterator[Learner]:
    """A learner without agents."""
    async with running(config, say=say) as runtime:
        await runtime.spare.end(SERVER, WORKER)
        async with trained(config, run_dir, runtime) as trainer, Learner(config, run_dir, trainer, warn=warn) as learner:
            await trainer.loaded()
            yield learner


@asynccontextmanager
async def training(config: RunConfig, run_dir: Path, *, say: Say, warn: Say = logger.warning) -> AsyncIterator[Training]:
    """Agents and a learner, side by side; but servers that share the learner's GPUs first, since they measure the free memory."""
    policy = Policy()
    async with (
        running(config, say=say) as runtime,
        launched(config, run_dir, runtime, policy=policy) as agents,
        trained(config, run_dir, runtime) as trainer,
        Training(config, run_dir, trainer, agents, policy, say=say, warn=warn) as system,
    ):
        if takes_turns(config):
            await agents.ready(say)
            await agents.serving.sleep(keep_weights=False)
            await trainer.loaded()
        else:
            await together([agents.ready(say), trainer.loaded()])
        system.watch()
        say("bringing the trainer's weights to the servers")
        yield system


@asynccontextmanager
async def training_adapters(
    config: RunConfig, run_dir: Path, *, say: Say, warn: Say = logger.warning
) -> AsyncIterator[dict[str, Training]]:
    """A `Training` for each of several adapters, by name: workers of their own, with the same trainer ranks and servers."""
    payloads: dict[str, WeightPayload] = {}
    lock = asyncio.Lock()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running(config, say=say))
        shared = await stack.enter_async_context(served(config, run_dir, runtime, policy=Policy(payloads=payloads)))
        trainer = await stack.enter_async_context(trained(config, run_dir, runtime))
        systems: dict[str, Training] = {}
        for name, own in config.adapters.items():
            folder, policy = Path(str(own.output_dir)), Policy(payloads=payloads)
            serving = shared.of(name, own.serving.models)
            agents = await stack.enter_async_context(launched(own, folder, runtime, policy=policy, serving=serving))
            system = Training(own, folder, trainer.of(name), agents, policy, say=say, warn=warn, lock=lock)
            systems[name] = await stack.enter_async_context(system)
        await together([shared.ready(say), trainer.loaded(), *[system.agents.ready(say) for system in systems.values()]])
        next(iter(systems.values())).agents.watches.add(shared.watch())
        for system in systems.values():
            system.watch()
        say("bringing the trainer's adapters to the servers")
        yield systems


@asynccontextmanager
async def trained(config: RunConfig, run_dir: Path, runtime: Runtime) -> AsyncIterator[TrainerGroup]:
    """The trainer's ranks, which `loaded` starts, and which are stopped at the end of the block."""
    trainer = TrainerGroup(config, run_dir, runtime.run_id, runtime.nodes, spare=runtime.spare)
    try:
        yield trainer
    finally:
        await stop_within(trainer, seconds=STOP_SECONDS)
