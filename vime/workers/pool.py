"""The driver's view of the rollout workers: work goes to the least loaded, and a lost or stuck worker is replaced.

No wait is unbounded: every rollout is limited inside its worker, and a worker is replaced if it does not answer, or if nothing
ends in it for longer than any rollout may take. Another worker then runs its groups.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from vime.chat.traffic import ModelUsage
from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place
from vime.config import RunConfig
from vime.processes.spare import Spare
from vime.rehearsal.scripted_client import ScriptedClients
from vime.serving.calls import Calls
from vime.serving.clients import make_client
from vime.serving.endpoint import Address, Endpoint
from vime.tasks import together
from vime.types import Group, Prompt, Rollout, StopReason
from vime.workers.dispatch import Dispatcher, Station, Work, WorkerLost
from vime.workers.group_run import GroupProgress, Resampled, stopped_rollout
from vime.workers.ray_worker import WORKER, RayWorker, raise_again
from vime.workers.worker import RolloutWorker, WorkerState

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between two checks on a worker."""
ANSWER_SECONDS = 30.0
"""Time limit for a short answer, in addition to the time for which a hook may block the worker."""


class WorkerPool:
    """`rollout.num_workers` Ray actors."""

    def __init__(
        self,
        config: RunConfig,
        endpoints: dict[str, Endpoint],
        nodes: Nodes,
        *,
        retrieval: Address | None = None,
        spare: Spare | None = None,
    ) -> None:
        """Workers of an ended run are in `spare`."""
        self._config = config
        self._spare = spare or Spare()
        self._retrieval = retrieval
        self._nodes = nodes
        self._endpoints = endpoints
        self._workers: list[RayWorker] = []
        """All workers since the start, whose files are removed in the end."""
        self._renewed: dict[int, RayWorker] = {}
        """The workers of an ended run, until they get their places."""
        self._dispatcher = Dispatcher(
            self._create,
            num_workers=config.rollout.num_workers,
            start_seconds=config.serving.start_timeout_seconds,
            watch=self._watch,
        )
        rollout, serving = config.rollout, config.serving
        rewards = (rollout.max_reward_retries + 1) * rollout.reward_timeout_seconds
        attempts = (rollout.max_retries + 1) * (rollout.generate_timeout_seconds + serving.recovery_timeout_seconds)
        self._stuck_seconds = attempts + 2 * rewards + 2 * rollout.max_blocked_seconds
        self._answer_seconds = ANSWER_SECONDS + 2 * rollout.max_blocked_seconds

    async def start(self) -> None:
        """Starts the workers side by side, or takes over those of an ended run, and waits until they answer."""
        await together(self._take_over(index) for index in range(self._config.rollout.num_workers))
        await self._spare.end(WORKER)
        await self._dispatcher.start()

    async def run_group(
        self,
        *,
        prompt: Prompt,
        slot: int,
        num_rollouts: int,
        version: int,
        num_wanted: int | None = None,
        progress: GroupProgress | None = None,
    ) -> Group:
        """The rollouts of one prompt; failed ones if they kill their workers or their result cannot be transferred."""
        arguments = {
            "prompt": prompt,
            "slot": slot,
            "num_rollouts": num_rollouts,
            "version": version,
            "num_wanted": num_wanted,
            "progress": progress,
        }

        def again(work: Work) -> None:
            known = work.arguments["progress"] or GroupProgress(prompt_index=prompt.index, version=version)
            work.arguments["progress"] = known.with_finished(work.heard) if work.heard else known

        try:
            return await self._dispatcher.run("run_group", arguments, again=again)
        except (WorkerLost, RayTaskError) as error:
            raise_again(error)
            failed = [_failed(slot, member, error) for member in range(num_rollouts)]
            return Group(index=slot, prompt=prompt, rollouts=failed, weight_version=version)

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int, run: int) -> Rollout:
        """One rollout of an evaluation item, in the evaluation's run of this number."""
        arguments = {"prompt": prompt, "row": row, "temperature": temperature, "version": version, "run": run}
        try:
            return await self._dispatcher.run("run_item", arguments)
        except (WorkerLost, RayTaskError) as error:
            raise_again(error)
            return _failed(prompt.index, 0, error)

    async def resample(self, *, slot: int, oldest: int, version: int) -> Resampled | None:
        """Has the stale rollouts of an unfinished group sampled again (`GroupRun.resample`); None if that is impossible."""
        found = self._dispatcher.find("run_group", slot=slot)
        if found is None:
            return None
        station, work = found
        assert isinstance(station.worker, RayWorker)
        call = station.worker.actor.resample.remote(slot=slot, oldest=oldest, version=version)
        try:
            resampled: Resampled | None = await asyncio.wait_for(call, self._answer_seconds)
        except (TimeoutError, RayActorError) as error:
            logger.warning("a rollout worker did not answer to resample: %r", error)
            return None
        if resampled is not None:
            work.resampled(resampled.members, version=resampled.version)
        return resampled

    async def progress(self) -> dict[int, GroupProgress]:
        """The progress of all unfinished groups, by slot, without workers that do not answer."""
        return {slot: progress for found in await self._ask("progress") for slot, progress in found.items()}

    async def usage(self) -> ModelUsage:
        """The use of the trained model: the time of the busiest worker and the calls of all."""
        found: list[ModelUsage] = await self._ask("usage")
        return ModelUsage(
            busy_seconds=max((usage.busy_seconds for usage in found), default=0.0),
            call_seconds=sum(usage.call_seconds for usage in found),
            num_calls=sum(usage.num_calls for usage in found),
        )

    async def calls(self) -> dict[str, Calls]:
        """The workers' calls to each served model since the last call of this method."""
        total: dict[str, Calls] = {}
        for found in await self._ask("calls"):
            for name, calls in found.items():
                total.setdefault(name, Calls()).add(calls)
        return total

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keeps the trained model free of calls within the block: earlier calls end first, and new ones wait."""
        limit = self._config.rollout.generate_timeout_seconds + self._config.serving.recovery_timeout_seconds
        try:
            if not all(await self._ask("hold", limit, seconds=limit)):
                logger.warning("calls to the trained model had not ended after %.0f s; they go on under the new weights", limit)
            yield
        finally:
            await self._ask("release")

    @asynccontextmanager
    async def expecting_weights(self) -> AsyncIterator[None]:
        """Marks a block in which servers receive weights: their silence is not a loss and does not count as an agent's time."""
        try:
            await self._ask("expect_weights", True)
            yield
        finally:
            await self._ask("expect_weights", False)

    async def stop(self) -> None:
        """Ends the workers, or leaves them to the next run."""
        if self._spare.keeps:
            shared = self._dispatcher.stations()[: self._config.rollout.num_workers]
            await together(self._leave(index, station) for index, station in enumerate(shared))
        self._dispatcher.stop()
        for worker in self._workers:
            worker.forget()

    async def _take_over(self, index: int) -> None:
        """Takes over the worker that an ended run has left in this place, if it still answers."""
        left = self._spare.take(WORKER, _key(index, self._options(index)))
        if left is not None and await (worker := self._made(index, left=left)).renewed():
            self._renewed[index] = worker

    def _create(self, index: int) -> RayWorker:
        return self._renewed.pop(index, None) or self._made(index)

    def _options(self, index: int) -> dict[str, Any]:
        """Options of a worker's actor; workers are spread over the nodes."""
        environment = {"PYTHONHASHSEED": "0"} if self._config.deterministic else None  # the order of a set of texts
        return self._nodes.options(Place(node=index % len(self._nodes)), environment=environment)

    def _made(self, index: int, *, left: Any = None) -> RayWorker:
        folder = self._config.output_dir
        log = Path(folder) / "logs" / f"worker-{len(self._workers)}.log" if folder is not None else None
        clients = ScriptedClients(self._config) if self._config.rehearse else make_client
        given = {"retrieval": self._retrieval, "make_client": clients, "log": log}
        worker = RayWorker(RolloutWorker, self._options(index), self._config, self._endpoints, left=left, **given)
        self._workers.append(worker)
        return worker

    async def _leave(self, index: int, station: Station) -> None:
        assert isinstance(station.worker, RayWorker)
        await station.worker.leave(self._spare, _key(index, station.worker.options))

    async def _ask(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """The answers of all workers that answer in time."""

        async def one(actor: Any) -> Any:
            try:
                return await asyncio.wait_for(getattr(actor, method).remote(*arguments), seconds + self._answer_seconds)
            except (TimeoutError, RayActorError) as error:
                logger.warning("a rollout worker did not answer to %s: %r", method, error)
                return None

        answers = await asyncio.gather(*[one(actor) for actor in self._actors()])
        return [answer for answer in answers if answer is not None]

    def _actors(self) -> list[Any]:
        return [worker.actor for station in self._dispatcher.stations() if isinstance(worker := station.worker, RayWorker)]

    async def _watch(self, station: Station) -> None:
        """Collects finished rollouts from a worker, and has it replaced if it does not answer or nothing ends in it."""
        assert isinstance(station.worker, RayWorker)
        actor, patience = station.worker.actor, max(self._config.serving.start_timeout_seconds, self._answer_seconds)
        seen, since = 0, 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                state: WorkerState = await asyncio.wait_for(actor.ready.remote(), patience)
                patience = self._answer_seconds
            except (TimeoutError, RayActorError) as error:
                if isinstance(error, RayActorError):
                    await station.worker.known(error)
                self._dispatcher.lost(station, f"a rollout worker does not answer: {error!r}")
                return
            for work in station.work:
                work.heard |= state.news.get(work.number, {})
            if state.num_ended != seen or state.num_running == 0:
                seen, since = state.num_ended, state.active_seconds
            elif state.active_seconds - since > self._stuck_seconds:
                self._dispatcher.lost(station, f"in a rollout worker nothing ended for {self._stuck_seconds:.0f} s")
                return


def _key(index: int, options: dict[str, Any]) -> str:
    """The worker of this number, with the options of its actor."""
    return f"{index} {options}"


def _failed(slot: int, member: int, error: WorkerLost | RayTaskError) -> Rollout:
    reason = StopReason.WORKER_LOST if isinstance(error, WorkerLost) else StopReason.GENERATE_RAISED
    return stopped_rollout(slot, member, reason, str(error))
