"""The served models of a run as the driver sees them: their start, their addresses, sleep, metrics and stop."""

import asyncio
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime.cluster.nodes import Nodes
from vime.config import ChatConfig, RunConfig
from vime.errors import ServerError
from vime.processes.kept import START_MARGIN_SECONDS, KeptProgram
from vime.processes.secret import given_secret, run_secret
from vime.processes.spare import Spare
from vime.serving.endpoint import Endpoint
from vime.serving.external import until_answering
from vime.serving.flags import endpoint_of
from vime.serving.fleet import Fleet, reach
from vime.serving.programs import SERVER, Planner, ServerProgram
from vime.tasks import cancel
from vime.weights.payload import payload_folder
from vime.weights.policy import Policy

__all__ = ["Endpoint", "Serving"]

POLL_SECONDS = 0.5


class Serving:
    """All served models of a run, by name."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        run_id: str,
        nodes: Nodes | None = None,
        *,
        policy: Policy | None = None,
        awaits_weights: bool = False,
        secret: str | None = None,
        spare: Spare | None = None,
    ) -> None:
        """Without `nodes`, all servers run on this machine; without `secret`, one is made where it is needed.

        Ray must be running before `start`. A sync changes `policy`, and a server that is lost
        gets that version again. With `awaits_weights` a sync must come before the trained model is asked: until then its servers
        have random weights.
        """
        self.payload_folder = payload_folder(run_id)
        self.secret = secret or run_secret(config.cluster.host)
        self._config, self._run_dir, self._run_id = config, run_dir, run_id
        self._nodes = nodes
        self._policy, self._awaits_weights = policy or Policy(), awaits_weights
        self._spare = spare or Spare()
        self._fleets: dict[str, Fleet] = {}

    async def take_over(self) -> None:
        """Takes over servers of an ended run that this one would start in the same way, and ends the others; before `start`."""
        self._planned()
        await self._spare.end(SERVER)

    def start(self) -> None:
        """Starts all servers side by side and returns at once; raises ServerError if a chosen port is in use."""
        for fleet in self._planned().values():
            fleet.start()

    def _planned(self) -> dict[str, Fleet]:
        if self._fleets:
            return self._fleets
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        planner = Planner(
            self._config,
            self._nodes,
            run_dir=self._run_dir,
            run_id=self._run_id,
            payload_folder=self.payload_folder,
            secret=self.secret,
            policy=self._policy,
            awaits_weights=self._awaits_weights,
            spare=self._spare,
        )
        self._fleets = {name: Fleet(name, model, planner) for name, model in self._config.serving.models.items()}
        return self._fleets

    async def ready(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Waits until every server is healthy, then for the routers; raises ServerError with the log's end if one is not."""
        limit = self._config.serving.max_start_seconds + START_MARGIN_SECONDS
        waiting = {asyncio.create_task(server.ready(limit)) for server in self._servers()}
        external = [endpoint for name, endpoint in self.endpoints().items() if self._config.serving.models[name].urls]
        waiting |= {asyncio.create_task(until_answering(endpoint, timeout_seconds=limit)) for endpoint in external}
        num_ready, total = 0, len(waiting)
        try:
            while waiting:
                if on_progress is not None:
                    ready = f"{num_ready} of {total} servers are ready" if num_ready else f"waiting for {_servers(total)}"
                    on_progress(ready)
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task
                num_ready += len(done)
        finally:
            await cancel(waiting)
        await asyncio.gather(*[fleet.start_router(limit) for fleet in self._fleets.values()])
        if on_progress is not None:
            on_progress(f"{_servers(total)} ready")

    async def watch(self) -> None:
        """Makes lost actors again, on another node if theirs is lost, until it is cancelled."""
        await asyncio.gather(*[fleet.watch() for fleet in self._fleets.values()])

    def endpoints(self) -> dict[str, Endpoint]:
        """The present endpoints of the served models by name; known once `start` has returned."""
        return {name: self._endpoint(name) for name in self._config.serving.models}

    def trained_endpoint(self, *, only: Collection[str] | None = None) -> Endpoint:
        """The endpoint of the trained model; with `only`, with no other servers than these (`actor-0`)."""
        trained = [name for name, model in self._config.serving.models.items() if model.trained]
        assert len(trained) == 1, f"{len(trained)} trained models"
        return self._endpoint(trained[0], only=only)

    def actors(self, name: str) -> dict[str, Any]:
        """The actors of a model's servers by their names (`actor-0`), without its router; empty for external servers."""
        return {server.spec.name: server.actor for server in self._fleets[name].present()}

    def program(self, name: str) -> KeptProgram:
        """A server or a router by its name (`actor-0`, `actor-router`)."""
        return next(program for program in self.programs() if program.spec.name == name)

    def programs(self) -> list[KeptProgram]:
        """All servers and routers."""
        return [program for fleet in self._fleets.values() for program in fleet.programs]

    def workers(self, name: str) -> dict[str, tuple[str, int]]:
        """Address and number of vLLM workers of a model's servers, by their names."""
        servers = self._fleets[name].present()
        return {server.spec.name: (server.url, server.group.settings.tensor_parallel_size) for server in servers}

    def check(self) -> None:
        """Raises ServerError if no server of a model is left."""
        for name, fleet in self._fleets.items():
            lost = [program.lost for program in fleet.programs if program.lost]
            if lost and not fleet.present():
                raise ServerError(f"no server of {name} is left: {'; '.join(lost)}")

    async def sleep(self, *, keep_weights: bool) -> None:
        """Gives the servers' GPUs to the trainer; the trained model's weights are dropped unless they are to be kept."""
        calls = []
        for name, fleet in self._fleets.items():
            level = 2 if self._config.serving.models[name].trained and not keep_weights else 1
            for server in fleet.present():
                server.is_asleep = True
                calls.append(server.actor.sleep.remote(level))
        await reach(calls)

    async def wake(self) -> None:
        """Servers that sleep take the rest of their GPU memory back and go on generating."""
        await reach([server.actor.wake.remote() for server in self._servers()])

    async def may_start(self) -> None:
        """The trainer has left the GPUs: servers that are down, and actors that are made again, may launch there."""
        servers = self._servers()
        for server in servers:
            server.is_asleep = False
        await reach([server.actor.may_start.remote() for server in servers])

    async def until_one_is_ready(self, *, deadline: float) -> None:
        """Waits until a server of the trained model is up and holds the version that it should.

        Raises ServerError, which says what happened to each server, if none is ready at `deadline` (of the monotonic clock), or
        if one was given up.
        """
        name = self.trained_endpoint().name
        while True:
            actors = self.actors(name)
            found = dict(zip(actors, await reach([actor.trouble.remote() for actor in actors.values()]), strict=True))
            if "" in found.values():
                return
            if time.monotonic() > deadline:
                reasons = "; ".join(f"{server}: {trouble or 'its actor is gone'}" for server, trouble in found.items())
                raise ServerError(f"no server of {name} came back in time (serving.recovery_timeout_seconds): {reasons}")
            await asyncio.sleep(POLL_SECONDS)

    async def events(self) -> list[dict[str, Any]]:
        """The faults of servers and routers since the last call, oldest first: {time, server, event, detail}."""
        found = await asyncio.gather(*[program.events() for program in self.programs()])
        return sorted((event for events in found for event in events), key=lambda event: event["time"])

    async def metrics(self) -> dict[str, float]:
        """`serving/<name>/<metric>` of the models that this run serves, since the last call."""
        found = await asyncio.gather(*[fleet.metrics() for fleet in self._fleets.values()])
        return {f"serving/{name}/{key}": value for name, of in zip(self._fleets, found) for key, value in of.items()}

    async def stop(self) -> None:
        """Ends all routers, and all servers but those that are left to the next run."""
        left = [server for fleet in self._fleets.values() for server in fleet.servers if server.leave(self._spare)]
        await asyncio.gather(*[program.stop() for program in self.programs() if program not in left])
        shutil.rmtree(self.payload_folder, ignore_errors=True)

    def _servers(self) -> list[ServerProgram]:
        """All servers that are not lost for good."""
        return [server for fleet in self._fleets.values() for server in fleet.present()]

    def _endpoint(self, name: str, *, only: Collection[str] | None = None) -> Endpoint:
        model, fleet = self._config.serving.models[name], self._fleets[name]
        servers = [server for server in fleet.present() if only is None or server.spec.name in only]
        urls = tuple(url.rstrip("/") for url in model.urls) or tuple(server.url for server in servers)
        front = fleet.front()
        url = front.url if front is not None else urls[0] if urls else ""
        endpoint = replace(
            endpoint_of(self._config, name),
            url=url,
            worker_urls=urls,
            actor_name=front.actor_name if front is not None else "",
            worker_actor_names=tuple(server.actor_name for server in servers),
            secret=given_secret() if model.urls else self.secret,
        )
        return replace(endpoint, chat=self._share(endpoint.chat)) if endpoint.chat is not None else endpoint

    def _share(self, chat: ChatConfig) -> ChatConfig:
        """The limits of one rollout worker at an endpoint with a chat API."""
        workers, per_minute = self._config.rollout.num_workers, chat.max_requests_per_minute
        return replace(
            chat,
            max_requests_per_minute=per_minute / workers if per_minute is not None else None,
            max_concurrent_requests=max(1, chat.max_concurrent_requests // workers),
        )


def _servers(number: int) -> str:
    return f"{number} server{'s' * (number != 1)}"
