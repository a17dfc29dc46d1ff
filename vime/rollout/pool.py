"""The rollout workers as the driver sees them: work goes to the least loaded, a lost worker is replaced, no wait is unbounded."""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from vime.config import RunConfig
from vime.nodes import Nodes
from vime.placement import Place
from vime.rollout.worker import ROLLOUTS_PER_GROUP, RolloutWorker
from vime.serving.calls import Calls
from vime.serving.topology import Endpoint
from vime.tasks import together
from vime.types import Group, Prompt, Rollout, StopReason

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
MAX_DISPATCHES = 3
"""Workers a piece of work is given to before it counts as failed."""


class WorkerLost(Exception):
    """The worker died or went silent under this piece of work on every try."""


class WorkerPool:
    """`rollout.num_workers` Ray actors."""

    def __init__(self, config: RunConfig, endpoints: dict[str, Endpoint], nodes: Nodes) -> None:
        self._config = config
        self._nodes = nodes
        self._endpoints = endpoints
        self._actors: list[Any] = []
        self._load: list[int] = []
        rollout = config.rollout
        attempt = rollout.generate_timeout_seconds + 2 * rollout.reward_timeout_seconds
        self._limit_seconds = (rollout.max_retries + 1) * (attempt + config.serving.recovery_timeout_seconds)

    async def start(self) -> None:
        """Starts the workers side by side and waits until they answer."""
        self._actors = [self._create(index) for index in range(self._config.rollout.num_workers)]
        self._load = [0] * len(self._actors)
        ready = together(actor.ready.remote() for actor in self._actors)
        await asyncio.wait_for(ready, self._config.serving.start_timeout_seconds)

    async def run_group(self, *, prompt: Prompt, slot: int, num_rollouts: int, version: int) -> Group:
        """The rollouts of one prompt. A worker that is lost again and again gives a group of failed rollouts."""
        arguments = {"prompt": prompt, "slot": slot, "num_rollouts": num_rollouts, "version": version}
        try:
            return await self._dispatch("run_group", arguments)
        except WorkerLost as error:
            lost = [_lost(slot, member, error) for member in range(num_rollouts)]
            return Group(prompt=prompt, rollouts=lost, weight_version=version)

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int) -> Rollout:
        """One rollout of an evaluation item."""
        arguments = {"prompt": prompt, "row": row, "temperature": temperature, "version": version}
        try:
            return await self._dispatch("run_item", arguments)
        except WorkerLost as error:
            return _lost(prompt.index, 0, error)

    async def calls(self) -> dict[str, Calls]:
        """What the workers asked of each served model since the last call of this; one that does not answer is left out."""
        asked = [asyncio.wait_for(actor.calls.remote(), ANSWER_SECONDS) for actor in self._actors]
        total: dict[str, Calls] = {}
        for found in await asyncio.gather(*asked, return_exceptions=True):
            for name, calls in found.items() if isinstance(found, dict) else ():
                total.setdefault(name, Calls()).add(calls)
        return total

    async def stop(self) -> None:
        """Ends the workers."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _create(self, index: int) -> Any:
        """Workers are spread over the nodes."""
        options = self._nodes.options(Place(node=index % len(self._nodes)))
        actor = ray.remote(RolloutWorker).options(max_concurrency=100_000, **options)
        return actor.remote(self._config, self._endpoints)

    async def _dispatch(self, method: str, arguments: dict[str, Any]) -> Any:
        error = ""
        for _ in range(MAX_DISPATCHES):
            index = min(range(len(self._actors)), key=self._load.__getitem__)
            actor = self._actors[index]
            self._load[index] += 1
            try:
                return await asyncio.wait_for(getattr(actor, method).remote(**arguments), self._limit_seconds)
            except (ActorDiedError, ActorUnavailableError, RayActorError) as died:
                error = f"rollout worker {index} died: {died}"
            except asyncio.TimeoutError:
                error = f"rollout worker {index} gave no answer within {self._limit_seconds:.0f} s"
            finally:
                self._load[index] -= 1
            self._replace(index, actor, error)
        raise WorkerLost(error)

    def _replace(self, index: int, actor: Any, error: str) -> None:
        if self._actors[index] is not actor:
            return  # another piece of work saw it first
        logger.warning("%s; starting another", error.splitlines()[0])
        ray.kill(actor)
        self._actors[index] = self._create(index)


def _lost(slot: int, member: int, error: Exception) -> Rollout:
    rollout = Rollout(rollout_id=slot * ROLLOUTS_PER_GROUP + member, group_index=slot)
    rollout.stop_reason, rollout.error = StopReason.WORKER_LOST, str(error)
    rollout.status = rollout.counting.status
    return rollout
