"""A rollout worker's process as the dispatcher sees it: a Ray actor, and the record of the work that it died in."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from vime.errors import ConfigError
from vime.rollout import black_box
from vime.rollout.dispatch import WorkerLost
from vime.rollout.suspects import Work
from vime.weights.payload import payload_folder

READ_SECONDS = 10.0
"""Time limit for reading the black box on another machine."""


class RayWorker:
    """One Ray actor, `actor_class(*arguments, black_box=PATH, **named)`, created with these options."""

    def __init__(self, actor_class: type, options: dict[str, Any], *arguments: Any, **named: Any) -> None:
        run_id = ray.get_runtime_context().namespace
        self._options = options
        self._black_box = payload_folder(run_id) / f"worker-{uuid.uuid4().hex[:8]}"
        actor = ray.remote(actor_class).options(max_concurrency=100_000, **options)
        self.actor: Any = actor.remote(*arguments, black_box=self._black_box, **named)

    async def started(self) -> None:
        """Waits until it answers; raises WorkerLost if it dies, and ConfigError for what it cannot work with."""
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
            raise WorkerLost(f"a rollout worker died: {died}") from died

    async def culprit(self) -> int:
        """The number of the work in whose code it died; 0 if in none, or if its machine cannot be asked."""
        if self._black_box.exists():
            return black_box.read(self._black_box)
        if "scheduling_strategy" not in self._options:
            return black_box.NOBODY
        try:
            found = ray.remote(black_box.read).options(**self._options).remote(self._black_box)
            return await asyncio.wait_for(found, READ_SECONDS)
        except (RayError, asyncio.TimeoutError):  # its machine is gone too
            return black_box.NOBODY

    def kill(self) -> None:
        """Ends the process."""
        ray.kill(self.actor)

    def forget(self) -> None:
        """Removes its black box if it is on this machine."""
        Path.unlink(self._black_box, missing_ok=True)


def raise_again(error: Exception) -> None:
    """Raises the ConfigError that came from a worker, if it is one: no further work can do better."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ConfigError):
        raise cause from error
