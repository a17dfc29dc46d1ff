"""Which programs a run launches, one Ray actor each: a server per replica, and a router for a model of several."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place, ServerGroup, server_groups, server_places
from vime.config import RunConfig, ServedModelConfig, ServerRole
from vime.processes.program import ProgramSpec
from vime.processes.restarts import Restarts
from vime.processes.secret import is_loopback
from vime.serving.flags import DUMMY, checkpoint_of, is_cpu, server_arguments, server_command, server_environment
from vime.serving.router import router_command


@dataclass(kw_only=True, slots=True)
class Planned:
    """One program: what it is, where it runs, and the actor that keeps it. Routers have no group.

    Example: `Planned(spec=…, model="actor", place=Place(node=0), group=…, number=1)` is the second server of its model.
    """

    spec: ProgramSpec
    model: str
    place: Place
    group: ServerGroup | None = None
    number: int = 0
    actor: Any = None
    url: str = ""
    """Where it answers now; the spec says where it was planned."""
    restarts: Restarts = field(default_factory=lambda: Restarts(0, 1.0))
    """Of its actor; the actor counts those of the program."""
    made: float = 0.0
    """When its actor was made, by the monotonic clock."""
    lost: str = ""
    """Why there is no actor any more, once that is final."""
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_router(self) -> bool:
        """Whether it passes requests on to others."""
        return self.group is None


class Planner:
    """Makes the specs of a run's programs."""

    def __init__(
        self,
        config: RunConfig,
        nodes: Nodes,
        *,
        run_dir: Path,
        payload_folder: Path,
        secret: str | None,
        awaits_weights: bool = False,
    ) -> None:
        """With `awaits_weights` a trainer brings the trained model's weights before anybody asks its servers."""
        self._config, self._nodes, self._secret = config, nodes, secret
        self._awaits_weights = awaits_weights
        self._run_dir, self._payload_folder = run_dir, payload_folder
        self._places = server_places(config)

    def plan(self, name: str, model: ServedModelConfig) -> list[Planned]:
        """The programs of one model, its router last. Raises ServerError if a chosen port is in use."""
        servers: list[Planned] = []
        for group in server_groups(name, model):
            for index in range(group.settings.num_replicas):
                number = len(servers)
                place = self._places[name][number]
                port = self._take_port(name, group, index, place)
                spec = self.server(group, name, number, name=f"{group.name}-{index}", place=place, port=port)
                servers.append(Planned(spec=spec, model=name, place=place, group=group, number=number, url=spec.url))
        urls = {ServerRole.regular: [url.rstrip("/") for url in model.urls]} if model.urls else by_role(servers)
        if len(model.urls) > 1 or len(servers) > 1:
            spec = self.router(name, urls)
            servers.append(Planned(spec=spec, model=name, place=Place(node=0), url=spec.url))
        return servers

    def server(self, group: ServerGroup, model: str, number: int, *, name: str, place: Place, port: int) -> ProgramSpec:
        """Server `number` of a model, at a place."""
        config, settings = self._config, group.settings
        cpus: list[int] = []
        if is_cpu(config):
            on_node = [of is place for places in self._places.values() for of in places if of.node == place.node]
            cpus = _cpus(on_node.index(True), len(on_node))
        address, gpus = self._nodes.host(place.node), self._nodes.gpus(place)
        awaits_weights = self._awaits_weights and settings.trained
        arguments = server_arguments(config, model, settings, number=number, role=group.role, awaits_weights=awaits_weights)
        environment = server_environment(config, settings, cpus=cpus, gpus=gpus, role=group.role, address=address)
        checkpoint = checkpoint_of(config, settings)
        spec = self._spec(name, place, port, server_command(arguments), environment, has_engine=True)
        hub_id = None if Path(checkpoint).is_dir() else checkpoint
        return replace(spec, hub_id=hub_id, awaits_weights=awaits_weights and arguments.get("load_format") == DUMMY)

    def successor(self, server: Planned) -> ProgramSpec:
        """The server again, where its place is now: on its port if it is on the same machine, else on a free one."""
        assert server.group is not None, server
        stays = self._nodes.host(server.place.node) == server.spec.address
        port = server.spec.port if stays else self._nodes.take_port(server.place.node, 0, server.spec.name)
        name, place = server.spec.name, server.place
        return self.server(server.group, server.model, server.number, name=name, place=place, port=port)

    def router(self, name: str, urls: dict[ServerRole, list[str]]) -> ProgramSpec:
        """The router of a model, on the first node."""
        port = self._nodes.take_port(0, 0, f"serving.models.{name} (router)")
        return self._spec(f"{name}-router", Place(node=0), port, self.router_command(urls), {}, has_engine=False)

    def service(self, name: str, *, port: int, command: list[str]) -> ProgramSpec:
        """A program that is no server of a model, on the first node."""
        port = self._nodes.take_port(0, port, f"{name}.port")
        spec = self._spec(name, Place(node=0), port, command, {}, has_engine=False)
        limit = self._config.retrieval.start_timeout_seconds
        return replace(spec, health_path="/health", start_timeout_seconds=limit, max_start_seconds=limit)

    def router_command(self, urls: dict[ServerRole, list[str]]) -> list[str]:
        """See `router.router_command`."""
        return router_command(self._config.serving, urls=urls)

    def _take_port(self, model: str, group: ServerGroup, index: int, place: Place) -> int:
        of_group = "" if group.name == model else f".groups.{group.name.removeprefix(f'{model}-')}"
        wanted = group.settings.port + index if group.settings.port else 0
        return self._nodes.take_port(place.node, wanted, f"serving.models.{model}{of_group}.port")

    def _spec(
        self, name: str, place: Place, port: int, command: list[str], environment: dict[str, str | None], *, has_engine: bool
    ) -> ProgramSpec:
        serving, listen = self._config.serving, self._nodes.listen(place.node)
        assert self._secret or is_loopback(listen), f"{name} would listen on {listen} without a secret"
        return ProgramSpec(
            name=name,
            address=self._nodes.host(place.node),
            listen=listen,
            secret=self._secret,
            port=port,
            command=command,
            log=str((self._run_dir / "logs" / f"{name}.log").resolve()),
            environment=environment,
            remove=[str(self._payload_folder)],
            driver_pid=os.getpid(),
            health_path="/health" if has_engine else "/liveness",  # a router is not healthy while one of its servers is down
            keep_cache=serving.keep_cache,
            has_engine=has_engine,
            start_timeout_seconds=serving.start_timeout_seconds,
            max_start_seconds=serving.max_start_seconds,
            health_interval_seconds=serving.health_interval_seconds,
            health_failures=serving.health_failures,
            engine_timeout_seconds=serving.engine_timeout_seconds,
            max_restarts=serving.max_restarts,
            restart_window_seconds=serving.restart_window_seconds,
        )


def by_role(servers: list[Planned]) -> dict[ServerRole, list[str]]:
    """Addresses of servers that are there, by what they do."""
    urls: dict[ServerRole, list[str]] = {}
    for server in servers:
        if server.group is not None and not server.lost:
            urls.setdefault(server.group.role, []).append(server.url)
    return urls


def _cpus(position: int, num_servers: int) -> list[int]:
    """Cores of one of several servers on this machine; none said for a single one, which vLLM places best itself."""
    if num_servers == 1:
        return []
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // num_servers)
    first = position * share % len(cores)
    return cores[first : first + share]
