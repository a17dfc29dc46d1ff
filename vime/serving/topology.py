"""The served models of a run as the driver sees them: their start, their addresses, sleep, metrics and stop.

A model has a vLLM server for each replica of each group, and a router if these are several; a model that others serve has at most
a router here.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place, ServerGroup, sends_adapters, server_groups, server_places
from vime.config import ChatConfig, Mode, RunConfig, ServedModelConfig, ServerRole
from vime.errors import ServerError, WeightSyncError
from vime.machine import num_cores
from vime.processes.kept import START_MARGIN_SECONDS, KeptProgram, program_spec
from vime.processes.program import ProgramSpec
from vime.processes.secret import given_secret, run_secret
from vime.processes.spare import Spare
from vime.serving.endpoint import Endpoint
from vime.serving.external import until_answering
from vime.serving.flags import (
    DUMMY,
    awaits_adapter,
    checkpoint_of,
    endpoint_of,
    is_cpu,
    server_arguments,
    server_command,
    server_environment,
)
from vime.serving.programs import SERVER, ServerProgram, Stage
from vime.serving.router import change_workers, router_command
from vime.serving.server_metrics import ServerMetrics, summarize
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
        self._awaits_weights = awaits_weights
        self.policies = {name: policy or Policy() if model.trained else Policy() for name, model in config.serving.models.items()}
        """The weights that the servers of each model should hold."""
        self._spare = spare or Spare()
        self._adapter = ""
        self._models = set(config.serving.models)
        self._places: dict[str, list[Place]] = {}
        self._servers: dict[str, list[ServerProgram]] = {}
        self._routers: dict[str, KeptProgram] = {}
        self._counted: dict[str, ServerMetrics] = {}
        """The counters of each server at the last call of `metrics`, or when it was taken over."""

    def of(self, adapter: str, models: Collection[str]) -> "Serving":
        """The same servers, once they are planned, for the trained adapter of a name and the models that its agents ask."""
        view = copy(self)
        view._adapter, view._models, view._counted = adapter, set(models), dict(self._counted)
        return view

    def plan(self) -> None:
        """Plans all servers and routers, once. Raises ServerError if a chosen port is in use."""
        if self._servers:
            return
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        self._places = server_places(self._config)
        for name, model in self._config.serving.models.items():
            servers = self._servers[name] = self._plan_servers(name, model)
            self._counted |= {server.spec.name: server.counted for server in servers if server.counted is not None}
            if len(model.urls) > 1 or len(servers) > 1:
                urls = {ServerRole.regular: [url.rstrip("/") for url in model.urls]} if model.urls else by_role(servers)
                self._routers[name] = self._plan_router(name, urls)

    async def take_over(self) -> None:
        """Takes over servers of an ended run that this one would start in the same way, and ends the others; before `start`."""
        self.plan()
        await self._spare.end(SERVER)

    def start(self) -> None:
        """Starts all servers side by side and returns at once; raises ServerError if a chosen port is in use.

        Routers wait for `ready`.
        """
        self.plan()
        created = [program for program in self.programs() if program.actor is None and not _is_absent(program)]
        for program in created:
            program.create_actor()
        for program in created:
            if isinstance(program, ServerProgram):
                program.launch()

    async def ready(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Waits until every server is healthy, then for the routers; raises ServerError with the log's end if one is not."""
        limit = self._config.serving.max_start_seconds + START_MARGIN_SECONDS
        waiting = {asyncio.create_task(server.ready(limit)) for server in self._all_present()}
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
        for router in self._routers.values():
            router.launch()
        await asyncio.gather(*[router.ready(limit) for router in self._routers.values()])
        if on_progress is not None:
            on_progress(f"{_servers(total)} ready")

    async def watch(self) -> None:
        """Makes lost actors again, on another node if theirs is lost, and tells routers which servers moved; never returns."""
        watching = [
            server.watch(partial(self._moved, name, server)) for name, servers in self._servers.items() for server in servers
        ]
        await asyncio.gather(*watching, *[router.watch() for router in self._routers.values()])

    def endpoints(self) -> dict[str, Endpoint]:
        """The present endpoints of the served models by name; known once `start` has returned."""
        return {name: self._endpoint(name) for name in self._config.serving.models if name in self._models}

    def trained_endpoint(self, *, only: Collection[str] | None = None) -> Endpoint:
        """The endpoint of the trained model; with `only`, with no other servers than these (`actor-0`)."""
        trained = [name for name, model in self._config.serving.models.items() if model.trained]
        assert len(trained) == 1, f"{len(trained)} trained models"
        return self._endpoint(trained[0], only=only)

    def actors(self, name: str) -> dict[str, Any]:
        """The actors of a model's servers by their names (`actor-0`), without its router; empty for external servers."""
        return {server.spec.name: server.actor for server in self._present(name)}

    def places(self, name: str) -> list[ServerProgram]:
        """The places of a model's servers that are not lost, in the order of their numbers; some may be empty."""
        return [server for server in self._servers[name] if not server.lost]

    async def admit(self, name: str, server: ServerProgram) -> None:
        """Gives a server its part of the new sessions."""
        await self._tell_router(name, add=server.url)

    async def dismiss(self, name: str, server: ServerProgram) -> None:
        """Sends all further requests, and the sessions, of a server to the others."""
        server.stage = Stage.leaving
        await self._tell_router(name, remove=server.url)

    def program(self, name: str) -> KeptProgram:
        """A server or a router by its name (`actor-0`, `actor-router`)."""
        return next(program for program in self.programs() if program.spec.name == name)

    def programs(self) -> list[KeptProgram]:
        """All servers and routers."""
        return [*(server for servers in self._servers.values() for server in servers), *self._routers.values()]

    def workers(self, name: str) -> dict[str, tuple[str, int]]:
        """Address and number of vLLM workers of a model's servers, by their names."""
        servers = self._present(name)
        return {server.spec.name: (server.url, server.group.settings.tensor_parallel_size) for server in servers}

    def check(self) -> None:
        """Raises ServerError if no server of a model is left."""
        for name in self._servers:
            lost = [program.lost for program in self._programs_of(name) if program.lost]
            if lost and not self._present(name):
                raise ServerError(f"no server of {name} is left: {'; '.join(lost)}")

    async def sleep(self, *, keep_weights: bool) -> None:
        """Gives the servers' GPUs to the trainer; the trained model's weights are dropped unless they are to be kept."""
        calls = []
        for name in self._servers:
            is_sent = self._config.serving.models[name].trained and not sends_adapters(self._config)
            level = 2 if is_sent and not keep_weights else 1
            for server in self._present(name):
                server.is_asleep = True
                calls.append(server.actor.sleep.remote(level))
        await reach(calls)

    async def wake(self) -> None:
        """Servers that sleep take the rest of their GPU memory back and go on generating."""
        await reach([server.actor.wake.remote() for server in self._all_present()])

    async def may_start(self) -> None:
        """The trainer has left the GPUs: servers that are down, and actors that are made again, may launch there."""
        servers = self._all_present()
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
        found = await asyncio.gather(*[self._metrics_of(name) for name in self._servers])
        return {f"serving/{name}/{key}": value for name, of in zip(self._servers, found) for key, value in of.items()}

    async def stop(self) -> None:
        """Ends all routers, and all servers but those that are left to the next run."""
        left = [server for servers in self._servers.values() for server in servers if server.leave(self._spare)]
        await asyncio.gather(*[program.stop() for program in self.programs() if program not in left])
        shutil.rmtree(self.payload_folder, ignore_errors=True)

    def _present(self, name: str) -> list[ServerProgram]:
        """The servers of a model that are there now."""
        return [server for server in self._servers[name] if server.is_present]

    def _all_present(self) -> list[ServerProgram]:
        """The servers of all models that are not lost for good."""
        return [server for name in self._servers for server in self._present(name)]

    def _programs_of(self, name: str) -> list[KeptProgram]:
        """The servers of a model, then its router."""
        router = self._routers.get(name)
        return [*self._servers[name], *([router] if router is not None else [])]

    async def _metrics_of(self, name: str) -> dict[str, float]:
        """The metrics of a model's servers since the last call, by their short names; empty if none answers."""
        servers, changes = self._present(name), list[ServerMetrics]()
        for server, now in zip(servers, await asyncio.gather(*[server.ask("metrics") for server in servers])):
            if now is not None:
                changes.append(now.since(self._counted.get(server.spec.name)))
                self._counted[server.spec.name] = now
        return summarize(changes) if changes else {}

    async def _moved(self, name: str, server: ServerProgram, old: str) -> None:
        """Tells the model's router, if there is one, the new address of a server."""
        if server.takes_requests:
            await self._tell_router(name, remove=old, add=server.url)

    async def _tell_router(self, name: str, *, remove: str | None = None, add: str | None = None) -> None:
        """Tells a model's router, if there is one, at once and for its next start, which addresses its servers have."""
        router = self._routers.get(name)
        if router is None or router.lost:
            return
        urls, settings = by_role(self._servers[name]), router.spec.settings
        command, starts_again = router_command(settings, urls=urls), ServerRole.prefill in urls
        router.spec = replace(router.spec, command=command)
        router.actor.set_command.remote(command, restart=starts_again)
        if not starts_again:  # a router of prefill and decode servers takes them only when it starts
            limit, secret = settings.start_timeout_seconds, router.spec.secret
            await change_workers(router.url, remove=remove, add=add, timeout_seconds=limit, secret=secret)

    def _plan_servers(self, name: str, model: ServedModelConfig) -> list[ServerProgram]:
        """The servers of one model, among them those of an ended run that it would start in the same way."""
        assert self._nodes is not None
        servers: list[ServerProgram] = []
        may_change = model.trained and self._config.mode is not Mode.eval
        num_at_start = self._config.serving.elastic.num_at_start if may_change else None
        for group in server_groups(name, model):
            for index in range(group.settings.num_replicas):
                number = len(servers)
                place, awaits = self._places[name][number], self._awaits_weights and group.settings.gets_weights
                arguments = server_arguments(
                    self._config, name, group.settings, number=number, role=group.role, awaits_weights=awaits
                )
                server = ServerProgram(
                    group,
                    self._take_port(name, group, index, place),
                    plan=partial(self._server_spec, f"{group.name}-{index}", group, place, arguments),
                    policy=self.policies[name],
                    starts_random=awaits
                    and (arguments.get("load_format") == DUMMY or awaits_adapter(self._config, group.settings)),
                    place=place,
                    nodes=self._nodes,
                    run_id=self._run_id,
                )
                if num_at_start is not None and number >= num_at_start:
                    server.stage = Stage.absent
                else:
                    server.take_over(self._spare)
                servers.append(server)
        return servers

    def _plan_router(self, name: str, urls: Mapping[ServerRole, list[str]]) -> KeptProgram:
        """The router of a model before these servers, on the first node."""
        assert self._nodes is not None
        place, port = Place(node=0), self._nodes.take_port(0, 0, f"serving.models.{name} (router)")
        command = router_command(self._config.serving, urls=urls)
        # /health is the health of its servers too, and fails while one of them is down
        spec = self._spec(f"{name}-router", command, port=port, place=place, health_path="/liveness")
        return KeptProgram(spec, place=place, nodes=self._nodes, run_id=self._run_id)

    def _server_spec(self, name: str, group: ServerGroup, place: Place, arguments: Mapping[str, Any], port: int) -> ProgramSpec:
        """The specification of a server, on the machine that its place is on now."""
        assert self._nodes is not None
        config, settings = self._config, group.settings
        cpus: list[int] = []
        if is_cpu(config):
            on_node = [of is place for places in self._places.values() for of in places if of.node == place.node]
            cpus = _cpus(on_node.index(True), len(on_node))
        address, gpus = self._nodes.host(place.node), self._nodes.gpus(place)
        environment = server_environment(config, settings, cpus=cpus, gpus=gpus, role=group.role, address=address)
        checkpoint = checkpoint_of(config, settings)
        hub_id = None if Path(checkpoint).is_dir() else checkpoint
        return self._spec(name, server_command(arguments), port=port, place=place, environment=environment, hub_id=hub_id)

    def _spec(self, name: str, command: list[str], *, place: Place, **more: Any) -> ProgramSpec:
        assert self._nodes is not None
        about: dict[str, Any] = {"secret": self.secret, "settings": self._config.serving, "remove": [str(self.payload_folder)]}
        return program_spec(name, command, place=place, nodes=self._nodes, run_dir=self._run_dir, **about, **more)

    def _take_port(self, model: str, group: ServerGroup, index: int, place: Place) -> int:
        assert self._nodes is not None
        of_group = "" if group.name == model else f".groups.{group.name.removeprefix(f'{model}-')}"
        wanted = group.settings.port + index if group.settings.port else 0
        return self._nodes.take_port(place.node, wanted, f"serving.models.{model}{of_group}.port")

    def _endpoint(self, name: str, *, only: Collection[str] | None = None) -> Endpoint:
        model = self._config.serving.models[name]
        servers = [server for server in self._present(name) if only is None or server.spec.name in only]
        urls = tuple(url.rstrip("/") for url in model.urls) or tuple(server.url for server in servers)
        front = next((program for program in reversed(self._programs_of(name)) if not program.lost), None)
        url = front.url if front is not None else urls[0] if urls else ""
        endpoint = replace(
            endpoint_of(self._config.adapters.get(self._adapter, self._config), name),
            url=url,
            worker_urls=urls,
            actor_name=front.actor_name if front is not None else "",
            worker_actor_names=tuple(server.actor_name for server in servers),
            secret=given_secret() if model.urls else self.secret,
            **({"adapter": self._adapter} if self._adapter and model.trained else {}),
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


def by_role(servers: Sequence[ServerProgram]) -> dict[ServerRole, list[str]]:
    """Addresses of the servers that answer requests, by their role."""
    urls: dict[ServerRole, list[str]] = {}
    for server in servers:
        if server.takes_requests:
            urls.setdefault(server.group.role, []).append(server.url)
    return urls


def _is_absent(program: KeptProgram) -> bool:
    return isinstance(program, ServerProgram) and program.stage is Stage.absent


async def reach(calls: list[Any]) -> list[Any]:
    """The answers of actors; None for an actor that is gone, whose place another one takes."""
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


def _servers(number: int) -> str:
    return f"{number} server{'s' * (number != 1)}"


def _cpus(position: int, num_servers: int) -> list[int]:
    """The cores of one of several servers on this machine; empty for a single server, which vLLM places best itself."""
    if num_servers == 1:
        return []
    cores = sorted(os.sched_getaffinity(0))[: num_cores()]
    share = max(1, len(cores) // num_servers)
    first = position * share % len(cores)
    return cores[first : first + share]
