"""A rollout worker: one process that runs the rollouts of many groups at once, asynchronously.

It holds no state that must survive: a lost worker is replaced, and its groups are run again.
"""

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vime.chat.trace import Trace, is_traced
from vime.chat.traffic import ModelUsage
from vime.config import RunConfig
from vime.evaluation.conditions import SINGLE_TURN, EvaluationRow
from vime.hooks import load_hook
from vime.memory.kv_cache import rollouts_of_a_worker
from vime.processes.output import send_output_to
from vime.rollout.context import Context, Sampling
from vime.rollout.outside_agent import calls_over_http, load_generate
from vime.rollout.within import Watchdog
from vime.serving.calls import Calls
from vime.serving.clients import make_client
from vime.serving.endpoint import Address, Endpoint
from vime.serving.sampling import in_training
from vime.tasks import together
from vime.trajectory.trajectory import Trajectory
from vime.types import Group, Prompt, Rollout
from vime.workers import black_box
from vime.workers.black_box import BlackBox
from vime.workers.group_hooks import run_group_function, score_group
from vime.workers.group_run import GroupProgress, GroupRun, Resampled
from vime.workers.isolation import Hooks, run_rollout, template_of
from vime.workers.served import MakeClient, ServedModels
from vime.workers.several_runs import SeveralRuns
from vime.workers.teachers import Teachers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """The work that a worker has done, with the rollouts of unfinished groups that ended since its last report.

    Example: 64 rollouts are running, 1,000 have ended, two of them in an unfinished group, and 90 s were not spent on waiting
    for the infrastructure: `WorkerState(num_running=64, num_ended=1000, active_seconds=90.0, news={7: {0: Rollout(…), 3:
    Rollout(…)}})`, where the keys are the number of the work and the member.
    """

    num_running: int
    num_ended: int
    active_seconds: float
    """Time since the worker began, without the time during which the clock of any agent was stopped."""
    news: dict[int, dict[int, Rollout]] = field(default_factory=dict)


class RolloutLimiter:
    """At most `limit` rollouts run at once within `async with places.taken(trace)`."""

    def __init__(self, limit: int) -> None:
        self.num_running = 0
        self.num_ended = 0
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def taken(self, trace: Trace, *, queues: bool = True) -> AsyncIterator[None]:
        """Waits for a place and counts the block as one rollout; `trace` books the wait as `queue`.

        With `queues=False` the block runs at once, beyond the limit.
        """
        arrived = time.time()
        async with self._free if queues else nullcontext():
            if queues:
                trace.add("queue", kind="queue", started=arrived)
            self.num_running += 1
            try:
                yield
            finally:
                self.num_running -= 1
                self.num_ended += 1


class RolloutWorker:
    """Runs groups; wrap it with `ray.remote`. All methods are coroutines of one event loop."""

    def __init__(
        self,
        config: RunConfig,
        endpoints: dict[str, Endpoint],
        *,
        make_client: MakeClient = make_client,
        retrieval: Address | None = None,
        black_box: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """`black_box` is the file in which the worker records whose code it is executing; `log` takes its process's output."""
        self._process = SeveralRuns()
        self._begin(config, endpoints, make_client=make_client, retrieval=retrieval, black_box=black_box, log=log)

    def _begin(
        self,
        config: RunConfig,
        endpoints: dict[str, Endpoint],
        *,
        make_client: MakeClient = make_client,
        retrieval: Address | None = None,
        black_box: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """Serves this run from now on, with nothing of an earlier one but the process."""
        if log is not None:
            send_output_to(log)
        self._config = config
        self._black_box_file, self._black_box = black_box, None
        self._served = ServedModels(config, endpoints, make_client=make_client, retrieval=retrieval)
        self._teachers = Teachers(config, self._served)
        self._places = RolloutLimiter(config.rollout.max_concurrent_rollouts or rollouts_of_a_worker(config))
        self._sampling = in_training(config)
        self._groups: dict[int, GroupRun] = {}
        self._work: dict[int, GroupRun] = {}
        """Groups by the numbers that the dispatcher gave them."""
        self._watchdog: Watchdog | None = None
        method = config.method
        reward = load_hook(method.reward) if method.reward else None
        self._hooks = {
            "train": Hooks(generate=load_generate(method.generate), reward=reward),
            "single_turn": Hooks(generate=load_hook(method.single_turn), reward=reward),
        }
        self._group_reward = load_hook(method.group_reward) if method.group_reward else None
        self._group_function = load_hook(config.rollout.group_function) if config.rollout.group_function else None

    async def ready(self) -> WorkerState:
        """Answers once the worker can take groups, and from then on as long as its event loop is not blocked."""
        if self._watchdog is None:
            self._process.begin()
            self._watchdog = Watchdog(self._config.rollout.max_blocked_seconds)
            self._black_box = BlackBox(self._black_box_file) if self._black_box_file is not None else None
            if calls_over_http(self._config.method.generate):
                await self._served.prepare_sessions()
        news = {number: ended for number, group_run in self._work.items() if (ended := group_run.news())}
        return WorkerState(
            num_running=self._places.num_running,
            num_ended=self._places.num_ended,
            active_seconds=self._served.clock.seconds,
            news=news,
        )

    async def leave(self) -> str:
        """Ends the remains of the run, which must have no work any more, so that `renew` can begin another.

        Returns why this process cannot take part in another run, as text for the log; empty if it can.
        """
        await self.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        return await self._process.end(self._config)

    async def renew(self, *arguments: Any, **named: Any) -> None:
        """Becomes the worker of another run, as if it were made with these arguments; `leave` comes before."""
        self._begin(*arguments, **named)

    async def work(self, number: int, method: str, arguments: dict[str, Any]) -> Any:
        """Calls a method as a piece of work, whose number the black box shows while its code is executing."""
        black_box.begin(number)
        return await getattr(self, method)(**arguments)

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
        """The rollouts of one prompt for training, once `num_wanted` of `num_rollouts` have ended (all by default).

        `version` is the servers' weight version when the group's generation began: no token may be older. Whatever is in
        `progress` is not run again.
        """
        context = partial(self._served.context, sampling=self._sampling, version=version, prompt=prompt)
        if self._group_function is not None:
            trace, session, sessions = self._trace(slot), f"slot{slot}", [f"slot{slot}"]
            try:
                async with self._places.taken(trace):
                    group = await run_group_function(
                        self._group_function,
                        prompt,
                        slot=slot,
                        num_rollouts=num_rollouts,
                        context=context(session, trace=trace, trajectory=self._trajectory(prompt, "group")),
                        config=self._config.rollout,
                        sampling=self._sampling,
                    )
                sessions += [f"{session}-{rollout.member}" for rollout in group.rollouts]
                await together(
                    self._teachers.teach(rollout, prompt=prompt, session=own, version=version, trace=trace)
                    for rollout, own in zip(group.rollouts, sessions[1:])
                )
            finally:
                self._served.finish(sessions)
            group.weight_version = version
            return group
        num_wanted = num_rollouts if num_wanted is None else num_wanted
        group_run = GroupRun(
            prompt, slot=slot, version=version, num_rollouts=num_rollouts, num_wanted=num_wanted, progress=progress
        )
        run_member = partial(self._run_member, self._hooks["train"], prompt, slot=slot, version=version, sampling=self._sampling)
        self._groups[slot] = self._work[black_box.current()] = group_run
        try:
            group = await group_run.run(run_member)
        finally:
            self._work.pop(black_box.current(), None)
            if self._groups.get(slot) is group_run:  # it may have been cancelled, and run again in the same slot
                del self._groups[slot]
        if self._group_reward is not None:
            session = f"slot{slot}-reward"
            scoring = context(session, trajectory=self._trajectory(prompt, "group_reward"))
            try:
                await score_group(self._group_reward, group, context=scoring, config=self._config.rollout)
            finally:
                self._served.finish([session])
        return group

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int, run: int = 0) -> Rollout:
        """One rollout of an evaluation item; `row` is single_turn, scaffold or trained, or a baseline's (`scaffold@NAME`).

        It does not queue behind training rollouts: the evaluation has its own limit on concurrent items.
        """
        sampling = Sampling(temperature=temperature, top_p=self._config.evaluation.top_p)
        parsed = EvaluationRow.of(row)
        return await self._run_member(
            self._hooks["single_turn" if parsed.way == SINGLE_TURN else "train"],
            prompt,
            0,
            self._trajectory(prompt, f"{row}-run{run}"),
            slot=prompt.index,
            version=version,
            sampling=sampling,
            evaluation=True,
            baseline=parsed.model,
        )

    async def progress(self) -> dict[int, GroupProgress]:
        """The progress of all unfinished groups, by slot."""
        return {slot: group_run.progress() for slot, group_run in self._groups.items()}

    async def resample(self, *, slot: int, oldest: int, version: int) -> Resampled | None:
        """Samples the stale rollouts of an unfinished group again (`GroupRun.resample`); None if that cannot be."""
        group_run = self._groups.get(slot)
        return group_run.resample(oldest=oldest, version=version) if group_run is not None else None

    async def hold(self, timeout_seconds: float) -> bool:
        """Holds new calls to the trained model until `release`; returns False if calls in flight did not end in time."""
        return await self._served.traffic.hold(timeout_seconds)

    async def release(self) -> None:
        """Lets calls to the trained model through again."""
        self._served.traffic.release()

    async def expect_weights(self, expected: bool) -> None:
        """Announces that weights are brought to the servers while calls are in flight, or that they are there."""
        self._served.traffic.expect_weights(expected)

    async def usage(self) -> ModelUsage:
        """The time and amount of the trained model's use."""
        return self._served.traffic.usage()

    async def calls(self) -> dict[str, Calls]:
        """The calls to each served model since the last call of this method."""
        return self._served.calls()

    async def close(self) -> None:
        """Closes the connections, for a worker whose process goes on without it."""
        await self._served.close()

    async def _run_member(
        self,
        hooks: Hooks,
        prompt: Prompt,
        member: int,
        trajectory: Trajectory,
        *,
        slot: int,
        version: int,
        sampling: Sampling,
        evaluation: bool = False,
        baseline: str | None = None,
    ) -> Rollout:
        """Runs one rollout as soon as there is a place for it; every attempt has a session of its own."""
        trace = Trace() if evaluation else self._trace(slot)
        trajectory.seed_of = trajectory.seed_of or Seeds.of_member(self._config, prompt, str(member))
        session = f"{prompt.dataset}-{slot}-{member}-{uuid.uuid4().hex[:8]}"
        sessions: list[str] = []

        def make_context(attempt: int) -> Context:
            sessions.append(f"{session}-{attempt}")
            return self._served.context(
                sessions[-1],
                sampling=sampling,
                version=version,
                evaluation=evaluation,
                trace=trace,
                trajectory=trajectory,
                baseline=baseline,
                prompt=prompt,
            )

        async with self._places.taken(trace, queues=not evaluation):
            try:
                rollout = await run_rollout(
                    hooks=hooks,
                    config=self._config.rollout,
                    make_context=make_context,
                    template=template_of(prompt, slot=slot, member=member, session=session),
                    sampling=sampling,
                )
                if not evaluation:
                    await self._teachers.teach(rollout, prompt=prompt, session=sessions[-1], version=version, trace=trace)
                return rollout
            finally:
                self._served.finish(sessions)

    def _trajectory(self, prompt: Prompt, member: str) -> Trajectory:
        return Trajectory(seed_of=Seeds.of_member(self._config, prompt, member))

    def _trace(self, slot: int) -> Trace:
        return Trace(keep_spans=is_traced(slot, self._config.logger.trace_share))


SEED_BITS = 62
"""vLLM takes seeds of 64 bits with a sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """Seeds of one rollout's model calls with `deterministic=true`, derived from the call and its rollout, never from the time.

    A call is identified by its model, prompt and limit, and by its number among equal calls of its rollout. So it is sampled the
    same way in every run, in any order of calls. The same holds after a lost server if the reply is sampled from its beginning; a
    seed does not determine the rest of a reply that is continued elsewhere.

    Example: of member 3 of the group of prompt 17: `Seeds(run_seed=0, dataset="train", prompt=17, member="3")`; of the second run
    of an evaluation: `Seeds(run_seed=0, dataset="docs_20", prompt=5, member="scaffold-run1")`.
    """

    run_seed: int
    dataset: str
    prompt: int
    member: str

    @classmethod
    def of_member(cls, config: RunConfig, prompt: Prompt, member: str) -> "Seeds | None":
        """The seeds of one member of a prompt's group; None without `deterministic=true`."""
        if not config.deterministic:
            return None
        return cls(run_seed=config.seed, dataset=prompt.dataset, prompt=prompt.index, member=member)

    def __call__(self, key: str, number: int) -> int:
        """The seed of a call: `key` is its digest (`call_key`), and `number` counts equal calls of the rollout from 0."""
        parts = (self.run_seed, self.dataset, self.prompt, self.member, key, number)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
