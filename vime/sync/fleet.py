"""The servers of the trained model as a run goes on: they join and leave until there are as many as were asked for last.

A server that joins is one that starts: it gets its weights, and their proof, as after a restart, and only then its first request.
One that leaves gets no more requests from the moment at which the router knows, but every sync as long as it finishes those that
it has; after `serving.elastic.drain_seconds` other servers go on with the rest, behind the tokens sampled so far. Its sessions
find another server by their next request.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from vime.config import RunConfig
from vime.errors import ServerError, VimeError
from vime.processes.kept import START_MARGIN_SECONDS
from vime.serving.programs import ServerProgram
from vime.serving.topology import Serving, reach
from vime.sync.delivery import WeightDelivery
from vime.sync.wanted_servers import WantedServers
from vime.tasks import together

LOOK_SECONDS = 1.0

Say = Callable[[str], None]


class Fleet:
    """The trained model's servers of a run with `serving.elastic`."""

    def __init__(
        self, config: RunConfig, run_dir: Path, serving: Serving, delivery: WeightDelivery, *, say: Say, warn: Say
    ) -> None:
        self.steady = asyncio.Lock()
        """Held by each sync, and while a server goes: a sync or its probe would take it for lost, and wait for it."""
        self._config, self._serving, self._delivery = config, serving, delivery
        self._wanted = WantedServers(run_dir)
        self._say, self._warn = say, warn
        self._name = serving.trained_endpoint().name

    async def watch(self) -> None:
        """Follows the number that is asked for; never returns."""
        while True:
            if (wanted := self._wanted.news()) is not None:
                await self.become(wanted)
            await asyncio.sleep(LOOK_SECONDS)

    async def become(self, number: int) -> None:
        """Starts or ends servers, side by side, until there are `number`; a server that does not start is left out."""
        places = self._serving.places(self._name)
        present = [place for place in places if place.is_present]
        if not 1 <= number <= len(places):
            self._warn(f"{number} servers of {self._name} were asked for: from 1 to {len(places)} are possible")
            return
        if number > len(present):
            absent = [place for place in places if not place.is_present]
            await together(self._join(place) for place in absent[: number - len(present)])
        elif number < len(present):
            await together(self._leave(place) for place in present[number:])

    async def _join(self, server: ServerProgram) -> None:
        self._say(f"{server.spec.name} starts, to join the servers of {self._name}")
        try:
            await server.join(self._config.serving.max_start_seconds + START_MARGIN_SECONDS)
        except ServerError as error:
            self._warn(str(error))
            return
        await self._serving.admit(self._name, server)
        self._say(f"{server.spec.name} has its weights, and joins the servers of {self._name}")

    async def _leave(self, server: ServerProgram) -> None:
        name = server.spec.name
        await self._serving.dismiss(self._name, server)
        (left,) = await reach([server.actor.drain.remote(self._config.serving.elastic.drain_seconds)])
        async with self.steady:
            with contextlib.suppress(VimeError):  # the run finds it too
                await self._delivery.compared()
            await reach([server.actor.hand_over.remote()])
            await server.empty()
        rest = f"; others go on with {left:.0f} requests" if left else ""
        self._say(f"{name} has left the servers of {self._name}{rest}")
