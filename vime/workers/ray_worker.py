"""A rollout worker's process as the dispatcher sees it: a Ray actor, and the record of the work that it died in."""

import asyncio
import logging
import time
import uuid
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from vime.errors import ConfigError
from vime.processes.spare import Spare
from vime.weights.payload import payload_folder
from vime.workers import black_box
from vime.workers.dispatch import Work, WorkerLost

logger = logging.getLogger(__name__)

WORKER = "rollout workers"
"""The kind of these parts among those that an ended run leaves (`vime.processes.spare`)."""
LEAVE_SECONDS = 10.0
"""Time limit for a worker to end what is left of its run."""
RENEW_SECONDS = 30.0
"""Time limit for a worker to begin another run."""
KNOWN_SECONDS, ASK_SECONDS = 60.0, 0.2
"""Time limit for Ray to notice, by missed heartbeats, that an actor's machine is lost too; time between two questions."""
READ_SECONDS = 10.0
"""Time limit for reading the black box on another machine."""


class RayWorker:
    """One Ray actor, `actor_class(*arguments, black_box=PATH, **named)`, created with these options."""

    def __init__(self, actor_class: type, options: dict[str, Any], *arguments: Any, left: Any = None, **named: Any) -> None:
        """`left` is an actor kept from an ended run with the same options; `renewed` reuses it for this worker."""
        run_id = ray.get_runtime_context().namespace
        self.options = options
        self._black_box = payload_folder(run_id) / f"worker-{uuid.uuid4().hex[:8]}"
        named["black_box"] = self._black_box
        actor = ray.remote(actor_class).options(max_concurrency=100_000, **options)
        self._renewal: Any = left.renew.remote(*arguments, **named) if left is not None else None
        self.actor: Any = left if left is not None else actor.remote(*arguments, **named)
        self._is_left = False

    async def renewed(self) -> bool:
        """True if the kept actor now serves this worker; raises ConfigError for settings that it cannot work with."""
        try:
            await asyncio.wait_for(self._renewal, RENEW_SECONDS)
        except RayTaskError as error:
            raise_again(error)
            raise
        except (TimeoutError, RayActorError) as error:
            logger.warning("the rollout worker of the last run cannot be taken over: %r", error)
            self.kill()
            return False
        return True

    async def started(self) -> None:
        """Waits until it answers; raises WorkerLost if it dies, and ConfigError for settings that it cannot work with."""
        try:
            await self.actor.ready.remote()
        except RayTaskError as error:
            raise_again(error)
            raise
        except RayActorError as died:
            raise WorkerLost(f"a rollout worker died: {died}") from died

    async def run(self, work: Work) -> Any:
        """Returns the worker's result; raises WorkerLost if the worker dies. Cancellation reaches the worker too."""
        answer = self.actor.work.remote(work.number, work.method, work.arguments)
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except RayActorError as died:
            await self.known(died)
            raise WorkerLost(f"a rollout worker died: {died}") from died

    async def known(self, error: BaseException) -> None:
        """Waits until Ray knows whether an unreachable worker has died; otherwise, another would be started on the same machine.

        If the machine is lost, the second worker would be lost as well, and the work would be blamed for both.
        """
        deadline = time.monotonic() + KNOWN_SECONDS
        while isinstance(error, (ActorUnavailableError, asyncio.TimeoutError)) and time.monotonic() < deadline:
            await asyncio.sleep(ASK_SECONDS)
            try:
                await asyncio.wait_for(self.actor.ready.remote(), ASK_SECONDS)
                return
            except (TimeoutError, RayError) as still:
                error = still

    async def culprit(self) -> int:
        """The number of the work whose code was executing when the worker died; 0 if there was none, or its machine is gone."""
        if self._black_box.exists():
            return black_box.read(self._black_box)
        if "scheduling_strategy" not in self.options:
            return black_box.NOBODY
        try:
            found = ray.remote(black_box.read).options(**self.options).remote(self._black_box)
            return await asyncio.wait_for(found, READ_SECONDS)
        except (TimeoutError, RayError):  # its machine is gone too
            return black_box.NOBODY

    async def leave(self, spare: Spare, key: str) -> None:
        """Leaves the process to the next run, unless something of this one is still in it."""
        try:
            reason = await asyncio.wait_for(self.actor.leave.remote(), LEAVE_SECONDS)
        except (TimeoutError, RayError) as error:
            reason = repr(error)
        if reason:
            logger.info("a rollout worker ends with its run: %s", reason)
            return
        self._is_left = spare.put(WORKER, key, self.actor, end=self._end)

    def kill(self) -> None:
        """Ends the process, unless it is left to the next run."""
        if not self._is_left:
            ray.kill(self.actor)

    async def _end(self) -> None:
        ray.kill(self.actor)

    def forget(self) -> None:
        """Removes its black box if it is on this machine."""
        Path.unlink(self._black_box, missing_ok=True)


def raise_again(error: Exception) -> None:
    """Raises the ConfigError that came from a worker, if it is one: no further work can do better."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ConfigError):
        raise cause from error
