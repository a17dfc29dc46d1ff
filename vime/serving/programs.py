"""The programs that serve the models of a run: a vLLM server per replica of each group, and a router for a model of several."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place, ServerGroup, server_groups, server_places
from vime.config import RunConfig, ServedModelConfig, ServerRole
from vime.machine import num_cores
from vime.processes.kept import KeptProgram, program_spec
from vime.processes.program import ProgramSpec
from vime.processes.spare import Spare
from vime.serving.flags import DUMMY, checkpoint_of, is_cpu, server_arguments, server_command, server_environment
from vime.serving.router import router_command
from vime.serving.server import ServerActor
from vime.serving.server_metrics import ServerMetrics
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)

SERVER = "servers"
"""The kind of these parts among those that an ended run leaves (`vime.processes.spare`)."""
RENEW_SECONDS = 10.0
"""Time limit for a server to forget the run that it served."""


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
        self.counted: ServerMetrics | None = None
        """The counters of a server that was taken over from an ended run, at that moment."""

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
        """The state that the successor of a lost actor needs: the weights, and whether the server is asleep."""
        return {"policy": self._policy, "starts_random": self._starts_random, "asleep": self.is_asleep}

    def moved_spec(self) -> ProgramSpec:
        """The specification for a restart: on the same port if the machine is the same, otherwise on a free one."""
        node = self.place.node
        stays = self.nodes.host(node) == self.spec.address
        return self._plan(self.spec.port if stays else self.nodes.take_port(node, 0, self.spec.name))


class Planner:
    """Plans the servers and routers of a run."""

    def __init__(
        self,
        config: RunConfig,
        nodes: Nodes,
        *,
        run_dir: Path,
        run_id: str,
        payload_folder: Path,
        secret: str | None,
        policy: Policy,
        awaits_weights: bool = False,
        spare: Spare | None = None,
    ) -> None:
        """Servers of an ended run are in `spare`.

        With `awaits_weights` a trainer brings the trained model's weights before its servers get any request."""
        self._config, self._nodes, self._run_id = config, nodes, run_id
        self._policy, self._awaits_weights = policy, awaits_weights
        self._spare = spare or Spare()
        self._places = server_places(config)
        self._spec = partial(
            program_spec,
            nodes=nodes,
            run_dir=run_dir,
            secret=secret,
            settings=config.serving,
            remove=[str(payload_folder)],
        )

    def servers(self, name: str, model: ServedModelConfig) -> list[ServerProgram]:
        """The servers of one model. Raises ServerError if a chosen port is in use."""
        servers: list[ServerProgram] = []
        for group in server_groups(name, model):
            for index in range(group.settings.num_replicas):
                number = len(servers)
                place, awaits = self._places[name][number], self._awaits_weights and group.settings.trained
                arguments = server_arguments(
                    self._config, name, group.settings, number=number, role=group.role, awaits_weights=awaits
                )
                server = ServerProgram(
                    group,
                    self._take_port(name, group, index, place),
                    plan=partial(self._server_spec, f"{group.name}-{index}", group, place, arguments),
                    policy=self._policy if group.settings.trained else Policy(),
                    starts_random=awaits and arguments.get("load_format") == DUMMY,
                    place=place,
                    nodes=self._nodes,
                    run_id=self._run_id,
                )
                server.take_over(self._spare)
                servers.append(server)
        return servers

    def router(self, name: str, urls: Mapping[ServerRole, list[str]]) -> KeptProgram:
        """The router of a model before these servers, on the first node."""
        place, port = Place(node=0), self._nodes.take_port(0, 0, f"serving.models.{name} (router)")
        command = router_command(self._config.serving, urls=urls)
        # /health is the health of its servers too, and fails while one of them is down
        spec = self._spec(f"{name}-router", command, port=port, place=place, health_path="/liveness")
        return KeptProgram(spec, place=place, nodes=self._nodes, run_id=self._run_id)

    def _server_spec(self, name: str, group: ServerGroup, place: Place, arguments: Mapping[str, Any], port: int) -> ProgramSpec:
        """The specification of a server, on the machine that its place is on now."""
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

    def _take_port(self, model: str, group: ServerGroup, index: int, place: Place) -> int:
        of_group = "" if group.name == model else f".groups.{group.name.removeprefix(f'{model}-')}"
        wanted = group.settings.port + index if group.settings.port else 0
        return self._nodes.take_port(place.node, wanted, f"serving.models.{model}{of_group}.port")


def _cpus(position: int, num_servers: int) -> list[int]:
    """The cores of one of several servers on this machine; empty for a single server, which vLLM places best itself."""
    if num_servers == 1:
        return []
    cores = sorted(os.sched_getaffinity(0))[: num_cores()]
    share = max(1, len(cores) // num_servers)
    first = position * share % len(cores)
    return cores[first : first + share]
