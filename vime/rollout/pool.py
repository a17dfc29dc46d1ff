"""The rollout workers as the driver sees them: work goes to the least loaded, a lost or stuck worker is replaced.

No wait is unbounded: every rollout has its limits inside its worker, and a worker that does not answer, or in which nothing ends
for longer than any rollout may take, is replaced; its groups are then run by another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from vime.config import RunConfig
from vime.data.progress import Progress
from vime.nodes import Nodes
from vime.placement import Place
from vime.rollout.group_run import stopped_rollout
from vime.rollout.traffic import Usage
from vime.rollout.worker import RolloutWorker, WorkerState
from vime.serving.calls import Calls
from vime.serving.endpoint import Endpoint
from vime.tasks import together
from vime.types import Group, Prompt, Rollout, StopReason

logger = logging.getLogger(__name__)

MAX_SHARED_LOSSES = 2
"""Workers that may be lost under a piece of work among others; then it runs alone, in a worker of its own."""
LOOK_SECONDS = 5.0
"""Between two looks at a worker."""
ANSWER_SECONDS = 30.0
"""For a small question, on top of what a hook may block the worker."""


class WorkerLost(Exception):
    """The worker died or got stuck under a piece of work."""


class WorkerPool:
    """`rollout.num_workers` Ray actors."""

    def __init__(
        self, config: RunConfig, endpoints: dict[str, Endpoint], nodes: Nodes, *, retrieval: Endpoint | None = None
    ) -> None:
        self._config = config
        self._retrieval = retrieval
        self._nodes = nodes
        self._endpoints = endpoints
        self._actors: list[Any] = []
        self._load: list[int] = []
        self._watches: list[asyncio.Task[None]] = []
        self._alone = asyncio.Lock()
        self._num_deadly = 0
        rollout, serving = config.rollout, config.serving
        rewards = (rollout.max_reward_retries + 1) * rollout.reward_timeout_seconds
        attempts = (rollout.max_retries + 1) * (rollout.generate_timeout_seconds + serving.recovery_timeout_seconds)
        self._stuck_seconds = attempts + 2 * rewards + 2 * rollout.max_blocked_seconds
        self._answer_seconds = ANSWER_SECONDS + 2 * rollout.max_blocked_seconds

    async def start(self) -> None:
        """Starts the workers side by side and waits until they answer."""
        self._actors = [self._create(index) for index in range(self._config.rollout.num_workers)]
        self._load = [0] * len(self._actors)
        ready = together(actor.ready.remote() for actor in self._actors)
        await asyncio.wait_for(ready, self._config.serving.start_timeout_seconds)
        self._watches = [asyncio.create_task(self._watch(index)) for index in range(len(self._actors))]

    async def run_group(
        self,
        *,
        prompt: Prompt,
        slot: int,
        num_rollouts: int,
        version: int,
        num_wanted: int | None = None,
        progress: Progress | None = None,
    ) -> Group:
        """The rollouts of one prompt; failed ones if they kill their workers, or if what they made cannot be handed over."""
        try:
            return await self._dispatch(
                "run_group",
                {
                    "prompt": prompt,
                    "slot": slot,
                    "num_rollouts": num_rollouts,
                    "version": version,
                    "num_wanted": num_wanted,
                    "progress": progress,
                },
            )
        except (WorkerLost, RayTaskError) as error:
            failed = [_failed(slot, member, error) for member in range(num_rollouts)]
            return Group(prompt=prompt, rollouts=failed, weight_version=version)

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int) -> Rollout:
        """One rollout of an evaluation item."""
        arguments = {"prompt": prompt, "row": row, "temperature": temperature, "version": version}
        try:
            return await self._dispatch("run_item", arguments)
        except (WorkerLost, RayTaskError) as error:
            return _failed(prompt.index, 0, error)

    async def progress(self) -> dict[int, Progress]:
        """What is done of all groups at work, by slot; a worker that does not answer is left out."""
        return {slot: progress for found in await self._ask("progress") for slot, progress in found.items()}

    async def usage(self) -> Usage:
        """What the trained model was used for: time of the busiest worker, calls of all."""
        found: list[Usage] = await self._ask("usage")
        return Usage(
            busy_seconds=max((usage.busy_seconds for usage in found), default=0.0),
            call_seconds=sum(usage.call_seconds for usage in found),
            num_calls=sum(usage.num_calls for usage in found),
        )

    async def calls(self) -> dict[str, Calls]:
        """What the workers asked of each served model since the last call of this."""
        total: dict[str, Calls] = {}
        for found in await self._ask("calls"):
            for name, calls in found.items():
                total.setdefault(name, Calls()).add(calls)
        return total

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Within the block no call to the trained model is in flight: those that are end first, new ones wait."""
        serving = self._config.serving
        limit = serving.request_timeout_seconds + serving.recovery_timeout_seconds
        try:
            if not all(await self._ask("hold", limit, seconds=limit)):
                logger.warning("calls to the trained model had not ended after %.0f s; they go on under the new weights", limit)
            yield
        finally:
            await self._ask("release")

    async def stop(self) -> None:
        """Ends the workers."""
        for watch in self._watches:
            watch.cancel()
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._watches = [], []

    def _create(self, index: int) -> Any:
        """Workers are spread over the nodes."""
        options = self._nodes.options(Place(node=index % len(self._nodes)))
        actor = ray.remote(RolloutWorker).options(max_concurrency=100_000, **options)
        return actor.remote(self._config, self._endpoints, retrieval=self._retrieval)

    async def _dispatch(self, method: str, arguments: dict[str, Any]) -> Any:
        """What a worker answers.

        A lost worker takes all of its work with it, so work that has lost `MAX_SHARED_LOSSES` runs alone, one piece at a time,
        until the one that kills workers is found. The others then go on together. Raises WorkerLost for that one.
        """
        while True:
            num_deadly = self._num_deadly
            for _ in range(MAX_SHARED_LOSSES):
                index = min(range(self._config.rollout.num_workers), key=self._load.__getitem__)
                with suppress(WorkerLost):
                    return await self._run_on(index, method, arguments)
            async with self._alone:
                if self._num_deadly == num_deadly:
                    async with self._own_worker() as index:
                        try:
                            return await self._run_on(index, method, arguments)
                        except WorkerLost:
                            self._num_deadly += 1
                            raise

    async def _run_on(self, index: int, method: str, arguments: dict[str, Any]) -> Any:
        """What the worker at `index` answers; raises WorkerLost, with another in its place, if it dies or is found stuck."""
        actor = self._actors[index]
        self._load[index] += 1
        answer = getattr(actor, method).remote(**arguments)
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except RayActorError as died:
            error = f"rollout worker {index} died: {died}"
        finally:
            self._load[index] -= 1
        self._replace(index, actor, error)
        raise WorkerLost(error)

    @asynccontextmanager
    async def _own_worker(self) -> AsyncIterator[int]:
        """The index of a worker behind the others, which get no work from it; it ends with the block."""
        index, actor = len(self._actors), self._create(len(self._actors))
        try:
            await asyncio.wait_for(actor.ready.remote(), self._config.serving.start_timeout_seconds)
        except (RayActorError, asyncio.TimeoutError) as error:
            ray.kill(actor)
            raise WorkerLost(f"a rollout worker of its own did not start: {error!r}") from error
        self._actors.append(actor)
        self._load.append(0)
        watch = asyncio.create_task(self._watch(index))
        try:
            yield index
        finally:
            watch.cancel()
            if self._actors:  # the pool was not stopped meanwhile
                self._load.pop()
                ray.kill(self._actors.pop())

    async def _ask(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """What the workers answer, of those that do."""

        async def one(actor: Any) -> Any:
            try:
                return await asyncio.wait_for(getattr(actor, method).remote(*arguments), seconds + self._answer_seconds)
            except (RayActorError, asyncio.TimeoutError) as error:
                logger.warning("a rollout worker did not answer to %s: %r", method, error)
                return None

        answers = await asyncio.gather(*[one(actor) for actor in self._actors])
        return [answer for answer in answers if answer is not None]

    async def _watch(self, index: int) -> None:
        """Replaces the worker at `index` whenever it does not answer, or nothing ends in it any more."""
        clock = asyncio.get_running_loop().time
        seen, since, watched = 0, clock(), self._actors[index]
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            actor = self._actors[index]
            try:
                state: WorkerState = await asyncio.wait_for(actor.ready.remote(), self._answer_seconds)
            except (RayActorError, asyncio.TimeoutError) as error:
                self._replace(index, actor, f"rollout worker {index} does not answer: {error!r}")
                continue
            if actor is not watched or state.num_ended != seen or state.num_running == 0:
                seen, since, watched = state.num_ended, clock(), actor
            elif clock() - since > self._stuck_seconds:
                self._replace(index, actor, f"in rollout worker {index} nothing ended for {self._stuck_seconds:.0f} s")

    def _replace(self, index: int, actor: Any, error: str) -> None:
        if not self._actors or self._actors[index] is not actor:
            return  # another piece of work saw it first
        logger.warning("%s; starting another", error.splitlines()[0])
        ray.kill(actor)
        self._actors[index] = self._create(index)


def _failed(slot: int, member: int, error: WorkerLost | RayTaskError) -> Rollout:
    reason = StopReason.WORKER_LOST if isinstance(error, WorkerLost) else StopReason.GENERATE_RAISED
    return stopped_rollout(slot, member, reason, str(error))
