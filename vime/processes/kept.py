"""A program of a run as the driver sees it: its place, its address, and the Ray actor that keeps it, made again when lost."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place
from vime.errors import ServerError
from vime.processes.events import Events
from vime.processes.keeper import KeeperActor
from vime.processes.program import END_SECONDS, ProgramSpec
from vime.processes.restarts import Restarts
from vime.processes.secret import is_loopback

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
SILENCE_SECONDS = 60.0
"""Silence of an actor after which it is replaced."""
ANSWER_SECONDS = 10.0
STOP_SECONDS = 2 * END_SECONDS + 10.0
"""Time limit for an actor to end its program, finally by force."""
NAME_SECONDS = 30.0
"""Longest time for which Ray may keep the name of an actor that is gone."""
START_MARGIN_SECONDS = 60.0
"""Time allowed before a program's own start, in which Ray makes its actor."""


def program_spec(name: str, command: list[str], *, place: Place, nodes: Nodes, run_dir: Path, **more: Any) -> ProgramSpec:
    """The specification of a program at a place of the run; `more` are the other fields of `ProgramSpec`."""
    spec = ProgramSpec(
        name=name,
        command=command,
        address=nodes.host(place.node),
        listen=nodes.listen(place.node),
        log=str((run_dir / "logs" / f"{name}.log").resolve()),
        driver_pid=os.getpid(),
        **more,
    )
    assert spec.secret or is_loopback(spec.listen), f"{name} would listen on {spec.listen} without a secret"
    return spec


class KeptProgram:
    """One program from launch to stop. A program that needs more than a keeper has a subclass with an actor of its own."""

    actor_class: Any = KeeperActor

    def __init__(self, spec: ProgramSpec, *, place: Place, nodes: Nodes, run_id: str) -> None:
        self.spec, self.place = spec, place
        self.actor: Any = None
        self.actor_name = f"vime-{run_id}-{spec.name}"
        """The name by which Ray knows the actor, and each that takes its place."""
        self.url = spec.url
        """The address at which the program answers now; the specification has the planned one."""
        self.lost = ""
        """The reason why there is no actor any more, once that is final."""
        self.nodes = nodes
        self._changing = asyncio.Lock()
        """Held while a lost actor is made again."""
        self._made = 0.0
        """The time when the actor was made, by the monotonic clock."""
        self._restarts = Restarts(spec.settings.max_restarts, spec.settings.restart_window_seconds)
        """The restarts of the actor; the keeper in it counts the program's."""
        self._events = Events(spec.name)

    def create_actor(self, *, is_successor: bool = False) -> None:
        """Makes the actor, which does not launch yet. Ray raises ValueError while it has one of this name."""
        self._made = time.monotonic()
        options = {"name": self.actor_name, "max_concurrency": 1000, **self.nodes.options(self.place)}
        arguments = {"is_successor": is_successor, **self.actor_arguments()}
        self.actor = self.actor_class.options(**options).remote(self.spec, **arguments)

    def launch(self) -> None:
        """Has the actor launch the program, and returns at once."""
        self.actor.start.remote()

    async def ready(self, limit_seconds: float) -> None:
        """Waits until the program is ready; raises ServerError with the log's end if it was given up, or if it takes longer."""
        try:
            await asyncio.wait_for(self.actor.ready.remote(), limit_seconds)
        except ServerError as error:
            raise ServerError(str(getattr(error, "cause", error))) from None  # without Ray's remote traceback
        except TimeoutError:
            raise ServerError(f"{self.spec.name} was not ready after {limit_seconds:.0f} s; see {self.spec.log}") from None

    async def watch(self, moved: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Makes a lost actor again until that fails, and notes each new address; `moved` is called with the old one."""
        while not self.lost:
            await asyncio.sleep(WATCH_SECONDS)
            if (actor := self.actor) is None:
                continue  # until it is started, perhaps again
            try:
                url: str = await asyncio.wait_for(actor.url.remote(), SILENCE_SECONDS)
            except ActorUnavailableError:
                continue  # until Ray reaches it again, or takes it for dead
            except (TimeoutError, RayError) as error:
                async with self._changing:
                    if actor is self.actor:  # which `stop` has not taken away
                        await self._make_again(f"its actor is gone: {type(error).__name__}")
                continue
            if url != self.url and actor is self.actor:
                old, self.url = self.url, url
                if moved is not None:
                    await moved(old)

    async def events(self) -> list[dict[str, Any]]:
        """The faults of the program and its actor since the last call, oldest first."""
        events = [*(await self.ask("events") or ()), *self._events.take()]
        return sorted(events, key=lambda event: event["time"])

    async def ask(self, method: str) -> Any:
        """The answer of the actor, None if it does not come."""
        if self.actor is None:
            return None
        try:
            return await asyncio.wait_for(getattr(self.actor, method).remote(), ANSWER_SECONDS)
        except (TimeoutError, RayError):
            return None

    async def stop(self) -> None:
        """Ends the program and its actor."""
        async with self._changing:
            actor, self.actor = self.actor, None
        if actor is None:
            return
        try:
            await asyncio.wait_for(actor.stop.remote(), STOP_SECONDS)
        except (TimeoutError, RayError) as error:
            logger.warning("%s did not stop cleanly: %s", self.spec.name, error)
        ray.kill(actor)

    def actor_arguments(self) -> dict[str, Any]:
        """Arguments of the actor besides the specification and `is_successor`."""
        return {}

    def moved_spec(self) -> ProgramSpec:
        """The specification after the node of the program's place may have been replaced by another; may take a while."""
        return self.spec

    async def _make_again(self, reason: str) -> None:
        """Another actor, where the program's place is now."""
        self._events.record("lost", reason)
        ray.kill(self.actor)  # one that hangs; its supervisor ends the program
        self._restarts.was_well(time.monotonic() - self._made)
        try:
            if not self._restarts.take():
                most = self.spec.settings.max_restarts
                raise ServerError(f"its actor was made again {most} times (serving.max_restarts)")
            await asyncio.to_thread(self.nodes.replace_lost, self.place.node)
            self.spec = await asyncio.to_thread(self.moved_spec)
            await self._create_named(is_successor=True)
        except (ServerError, RayError) as error:
            self.lost = f"{self.spec.name}: {error}"
            self._events.record("gave_up", str(error))
            return
        self.launch()

    async def _create_named(self, *, is_successor: bool) -> None:
        """Waits for the name, which Ray frees when the actor before is buried. Raises ServerError if it does not."""
        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                return self.create_actor(is_successor=is_successor)
            except ValueError as error:
                if time.monotonic() > deadline:
                    raise ServerError(f"Ray does not free the name of the actor before: {error}") from None
            await asyncio.sleep(WATCH_SECONDS)
