"""The programs of a run and the actors that keep them: an actor that is lost, with its node perhaps, is made again."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from vime.cluster.nodes import Nodes
from vime.config import ServerRole, ServingConfig
from vime.errors import ServerError, WeightSyncError
from vime.processes.program import END_SECONDS
from vime.processes.restarts import Restarts
from vime.serving.programs import Planned, Planner, by_role
from vime.serving.router import replace_worker
from vime.serving.server import ServerActor
from vime.weights.payload import NO_VERSION, WeightPayload

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
SILENCE_SECONDS = 60.0
"""An actor that says nothing for so long is made again."""
ANSWER_SECONDS = 10.0
STOP_SECONDS = 2 * END_SECONDS + 10.0
"""For an actor to end its program, by force in the end."""
NAME_SECONDS = 30.0
"""How long Ray may keep the name of an actor that is gone."""


class Fleet:
    """Planned programs from launch to stop; each has a Ray actor of its own."""

    def __init__(self, config: ServingConfig, nodes: Nodes, planner: Planner, *, run_id: str) -> None:
        self.programs: list[Planned] = []
        self._config, self._nodes, self._planner = config, nodes, planner
        self._run_id = run_id
        self._expected: dict[str, tuple[int, WeightPayload | None]] = {}
        self.asleep = False
        """Whether the trainer has the GPUs: an actor that is made again then waits with its launch."""

    def add(self, name: str) -> None:
        """Plans the programs of one model."""
        self.programs += self._planner.plan(name, self._config.models[name])

    def start(self) -> None:
        """Makes all actors, and has the servers launch; routers wait for `start_routers`."""
        for program in self.programs:
            program.restarts = Restarts(self._config.max_restarts, self._config.restart_window_seconds)
            program.actor = self._create_actor(program)
            if not program.is_router:
                program.actor.start.remote()

    async def start_routers(self, limit_seconds: float) -> None:
        """Launches the routers and waits until they answer."""
        routers = [program for program in self.programs if program.is_router]
        await asyncio.gather(*[program.actor.start.remote() for program in routers])
        await asyncio.gather(*[self.wait_ready(program, limit_seconds) for program in routers])

    async def wait_ready(self, program: Planned, limit_seconds: float) -> None:
        """Waits for one program; raises ServerError with the log's end if it was given up."""
        try:
            await asyncio.wait_for(program.actor.ready.remote(), limit_seconds)
        except ServerError as error:
            raise ServerError(str(getattr(error, "cause", error))) from None  # without Ray's remote traceback
        except asyncio.TimeoutError:
            raise ServerError(f"{program.spec.name} was not ready after {limit_seconds:.0f} s; see {program.spec.log}") from None

    async def watch(self) -> None:
        """Makes lost actors again, and tells routers of servers that moved; until it is cancelled."""
        await asyncio.gather(*[self._watch(program) for program in self.programs])

    def of(self, model: str) -> list[Planned]:
        """The programs of a model that are there or come back, its router last."""
        return [program for program in self.programs if program.model == model and not program.lost]

    def servers(self) -> list[Planned]:
        """All servers that are there or come back."""
        return [program for program in self.programs if not (program.is_router or program.lost)]

    def expect(self, model: str, version: int, payload: WeightPayload | None) -> None:
        """Notes what the servers of a model hold from now on, for actors that are made again."""
        self._expected[model] = (version, payload)

    def actor_name(self, program: Planned) -> str:
        """The name by which Ray knows a program's actor, and each that takes its place."""
        return f"vime-{self._run_id}-{program.spec.name}"

    async def events(self) -> list[dict[str, Any]]:
        """What went wrong since the last call, oldest first."""
        found = await asyncio.gather(*[ask(program, "events") for program in self.programs])
        for program in self.programs:
            found.append(program.events)
            program.events = []
        return sorted((event for events in found for event in events or ()), key=lambda event: event["time"])

    async def stop(self) -> None:
        """Ends all programs and their actors."""
        programs, self.programs = [program for program in self.programs if program.actor is not None], []
        stopping = [asyncio.wait_for(program.actor.stop.remote(), STOP_SECONDS) for program in programs]
        results = await asyncio.gather(*stopping, return_exceptions=True)
        for program, result in zip(programs, results):
            if isinstance(result, BaseException):
                logger.warning("%s did not stop cleanly: %s", program.spec.name, result)
            ray.kill(program.actor)

    def _create_actor(self, program: Planned) -> Any:
        options = self._nodes.options(program.place)
        program.made = time.monotonic()
        return ServerActor.options(name=self.actor_name(program), max_concurrency=1000, **options).remote(program.spec)

    async def _watch(self, program: Planned) -> None:
        while not program.lost:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                url: str = await asyncio.wait_for(program.actor.url.remote(), SILENCE_SECONDS)
            except ActorUnavailableError:
                continue  # until Ray reaches it again, or takes it for dead
            except (RayError, asyncio.TimeoutError) as error:
                await self._make_again(program, f"its actor is gone: {type(error).__name__}")
                continue
            if url != program.url:
                await self._move(program, url)

    async def _make_again(self, program: Planned, reason: str) -> None:
        """Another actor for a program, where its place is now, with the weights that the lost one should have."""
        _record(program, "lost", reason)
        ray.kill(program.actor)  # one that hangs; its supervisor ends the program
        program.restarts.was_well(time.monotonic() - program.made)
        try:
            if not program.restarts.take():
                raise ServerError(f"its actor was made again {self._config.max_restarts} times (serving.max_restarts)")
            await asyncio.to_thread(self._nodes.replace_lost, program.place.node)
            if not program.is_router:
                program.spec = await asyncio.to_thread(self._planner.successor, program)
            program.actor = await self._create_successor(program)
        except (ServerError, RayError) as error:
            program.lost = f"{program.spec.name}: {error}"
            _record(program, "gave_up", str(error))
            return
        version, payload = (NO_VERSION, None) if program.is_router else self._expected.get(program.model, (NO_VERSION, None))
        program.actor.adopt.remote(version, payload, asleep=self.asleep)
        program.actor.start.remote()

    async def _create_successor(self, program: Planned) -> Any:
        """Waits for the name, which Ray frees when the lost actor is buried."""
        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                return self._create_actor(program)
            except ValueError as error:
                if time.monotonic() > deadline:
                    raise ServerError(f"Ray does not free the name of the lost actor: {error}") from None
            await asyncio.sleep(WATCH_SECONDS)

    async def _move(self, program: Planned, url: str) -> None:
        """Notes a new address, and tells the router if there is one."""
        old, program.url = program.url, url
        programs = self.of(program.model)
        router = programs[-1]
        if program.is_router or not router.is_router:
            return
        urls = by_role(programs)
        command = self._planner.router_command(urls)
        router.spec = replace(router.spec, command=command)
        router.actor.set_command.remote(command, restart=ServerRole.prefill in urls)
        if ServerRole.prefill not in urls:  # a router of prefill and decode servers takes them only when it starts
            limit, secret = self._config.start_timeout_seconds, router.spec.secret
            await replace_worker(router.url, old=old, new=url, timeout_seconds=limit, secret=secret)


async def reach(calls: list[Any]) -> list[Any]:
    """What actors answer; None of one that is gone, which another takes the place of."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, RayActorError):
            raise plain_error(result)
    return [None if isinstance(result, BaseException) else result for result in results]


def plain_error(error: BaseException) -> BaseException:
    """The error without Ray's wrapping, whose message is a remote traceback."""
    for kind in (WeightSyncError, ServerError):
        if isinstance(error, kind):
            return kind(str(getattr(error, "cause", error)))
    return error


async def ask(program: Planned, method: str) -> Any:
    """The answer of a program's actor, None if it does not come."""
    try:
        return await asyncio.wait_for(getattr(program.actor, method).remote(), ANSWER_SECONDS)
    except (RayError, asyncio.TimeoutError):
        return None


def _record(program: Planned, event: str, detail: str) -> None:
    logger.warning("%s: %s (%s)", program.spec.name, event, detail)
    program.events.append({"time": time.time(), "server": program.spec.name, "event": event, "detail": detail})
