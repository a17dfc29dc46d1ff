"""`ServerProgram`: a vLLM server as the driver sees it, with its weights, and left by one run to the next."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from vime.cluster.placement import ServerGroup
from vime.errors import ServerError
from vime.processes.kept import WATCH_SECONDS, KeptProgram
from vime.processes.program import ProgramSpec
from vime.processes.spare import Spare
from vime.serving.server import ServerActor
from vime.serving.server_metrics import ServerMetrics
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)

SERVER = "servers"
"""The kind of these parts among those that an ended run leaves (`vime.processes.spare`)."""
RENEW_SECONDS = 10.0
"""Time limit for a server to forget the run that it served."""


class Stage(Enum):
    """The part that a server takes in the run; all but those of `serving.elastic` are serving from start to end."""

    absent = auto()
    """The place is kept, and no server is there."""
    joining = auto()
    """The server starts, and gets its weights."""
    serving = auto()
    leaving = auto()
    """The server gets no new requests, and syncs as long as it has some."""


class ServerProgram(KeptProgram):
    """A vLLM server as the driver sees it, with the weights that it should hold."""

    actor_class = ServerActor

    def __init__(
        self,
        group: ServerGroup,
        port: int,
        *,
        plan: Callable[[int], ProgramSpec],
        policy: Policy,
        starts_random: bool,
        **where: Any,
    ) -> None:
        """`plan` gives the specification for a port, on the machine that the place is on now; `where` is `KeptProgram`'s."""
        super().__init__(plan(port), **where)
        self.group = group
        self._policy, self._starts_random = policy, starts_random
        self._plan = plan
        self.is_asleep = False
        """True if the trainer has the GPUs; an actor that replaces a lost one then waits before it launches the server."""
        self.stage = Stage.serving
        self.counted: ServerMetrics | None = None
        """The counters of a server that was taken over from an ended run, at that moment."""

    async def join(self, limit_seconds: float) -> None:
        """Starts a server in its place, and returns when it holds the version of the weights that it should.

        From the first moment on syncs reach it, as they reach one that is started again. Raises ServerError if it does not start;
        its place is then empty again.
        """
        self.url = self.spec.url
        await self._create_named(is_successor=False)
        self.stage = Stage.joining
        self.launch()
        try:
            await self._has_joined(limit_seconds)
        except ServerError as error:
            await self.empty()
            raise ServerError(f"{self.spec.name} did not join: {error}") from error
        self.stage = Stage.serving

    async def _has_joined(self, limit_seconds: float) -> None:
        while not self.lost:
            try:
                await self.ready(limit_seconds)
                self.url = await self.actor.url.remote()  # its port may have been taken
                return
            except RayActorError:
                await asyncio.sleep(WATCH_SECONDS)  # until it has a successor
        raise ServerError(self.lost)

    async def empty(self) -> None:
        """Ends the server, whose place stays for another."""
        self.stage = Stage.absent
        await self.stop()

    @property
    def is_present(self) -> bool:
        """True if there is a server, which is not lost for good; it gets every sync."""
        return not self.lost and self.stage is not Stage.absent

    @property
    def takes_requests(self) -> bool:
        """True if the server is present and gets new requests."""
        return not self.lost and self.stage is Stage.serving

    def take_over(self, spare: Spare) -> None:
        """Takes over the server of an ended run that was started in the same way, if there is one which still answers."""
        kept: ServerProgram | None = spare.take(SERVER, self._key())
        if kept is None:
            return
        try:
            self.counted = ray.get(kept.actor.renew.remote(self.spec.log), timeout=RENEW_SECONDS)
        except (RayError, GetTimeoutError) as error:
            logger.warning("%s of the last run cannot be taken over: %r", self.spec.name, error)
        if self.counted is None:
            spare.put(SERVER, self._key(), kept, end=kept.stop)  # which ends it before another is started
            return
        self.actor, self.actor_name, self.url = kept.actor, kept.actor_name, kept.url
        self.spec = replace(self.spec, port=kept.spec.port)

    def leave(self, spare: Spare) -> bool:
        """Leaves the server to the next run; returns False if it must end, for example because the user chose its port."""
        if self.actor is None or self.lost or self.group.settings.port:
            return False
        return spare.put(SERVER, self._key(), self, end=self.stop)

    def _key(self) -> str:
        """The server's identity: the files of its checkpoint, and its specification without the parts that differ for each run.

        The seed of a server that awaits weights only says which random numbers it begins with: calls of a run that is to be
        repeated exactly (`deterministic=true`) bring seeds of their own.
        """
        spec = self._plan(0)
        command = spec.command
        if self._starts_random:
            seed = command.index("--seed")
            command = [*command[:seed], *command[seed + 2 :]]
        checkpoint = Path(command[command.index("--model") + 1])
        files = sorted((file.name, file.stat().st_mtime_ns) for file in checkpoint.iterdir()) if checkpoint.is_dir() else []
        return repr((replace(spec, command=command, log="", remove=[]), files))

    def actor_arguments(self) -> dict[str, Any]:
        """The state that the successor of a lost actor needs: the weights, and whether the server is asleep, or joins."""
        return {
            "policy": self._policy,
            "starts_random": self._starts_random,
            "asleep": self.is_asleep,
            "is_joining": self.stage in (Stage.absent, Stage.joining),
        }

    def moved_spec(self) -> ProgramSpec:
        """The specification for a restart: on the same port if the machine is the same, otherwise on a free one."""
        node = self.place.node
        stays = self.nodes.host(node) == self.spec.address
        return self._plan(self.spec.port if stays else self.nodes.take_port(node, 0, self.spec.name))
