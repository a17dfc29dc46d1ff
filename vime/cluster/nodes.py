"""The machines of a run: this one, or nodes of a Ray cluster whose GPUs a placement group reserves for the length of the run.

Places (`vime.cluster.placement`) are numbers; this turns them into actor options, addresses, ports and GPU ids. GPUs are held by
one agent per node. All other actors ask Ray for none and get theirs by `CUDA_VISIBLE_DEVICES`, so that trainer and servers can
share a GPU.
"""

import os
import shlex
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from vime.cluster.placement import Place
from vime.cluster.ports import LOOPBACK, free_port
from vime.config import RunConfig
from vime.errors import ServerError
from vime.surroundings import no_proxy

RESERVE_TIMEOUT_SECONDS = 60.0
PORT_TIMEOUT_SECONDS = 30.0
OWN_DEVICES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Makes Ray leave `CUDA_VISIBLE_DEVICES` as it is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One machine. Example: `Node(id="4f…", host="10.0.0.7", gpus=(0, 1, 2, 3))`; `id` is None for this one without a cluster."""

    id: str | None
    host: str
    gpus: tuple[int, ...]


class NodeAgent:
    """Holds a node's GPUs for the run, and answers for the node."""

    def describe(self) -> Node:
        """This node, as Ray knows it."""
        context = ray.get_runtime_context()
        gpus = tuple(sorted(int(gpu) for gpu in ray.get_gpu_ids()))
        return Node(id=context.get_node_id(), host=ray.util.get_node_ip_address(), gpus=gpus)

    def free_port(self, host: str, wanted: int) -> int:
        """Returns `wanted`, or a free port if that is 0; raises OSError if it is in use."""
        return free_port(host, wanted)


class Nodes:
    """The nodes of a run in the order of their numbers. `reserve` before anything else, `release` at the end."""

    def __init__(self, config: RunConfig) -> None:
        self._cluster = config.cluster
        self._nodes: list[Node] = []
        self._agents: list[Any] = []
        self._bundles: list[int] = []
        """Bundles of the placement group, by the number of the node."""
        self._group: Any = None
        self._taken: set[tuple[str, int]] = set()
        self._replacing = threading.Lock()

    def reserve(self) -> None:
        """Reserves the nodes and their GPUs. Raises ServerError if the Ray cluster does not have enough of them."""
        cluster = self._cluster
        if cluster.ray_address is None:
            self._nodes = [Node(id=None, host=_this_host(cluster.host), gpus=_visible_gpus(cluster.gpus_per_node))]
            return
        bundle = {"CPU": 1.0} | ({"GPU": float(cluster.gpus_per_node)} if cluster.gpus_per_node else {})
        self._group = placement_group([bundle] * cluster.num_nodes, strategy="STRICT_SPREAD")
        agents: list[Any] = []
        try:
            ray.get(self._group.ready(), timeout=RESERVE_TIMEOUT_SECONDS)
            agents = [self._agent(bundle) for bundle in range(cluster.num_nodes)]
            nodes = ray.get([agent.describe.remote() for agent in agents], timeout=RESERVE_TIMEOUT_SECONDS)
        except GetTimeoutError:
            self.release()
            raise ServerError(_missing(cluster.num_nodes, cluster.gpus_per_node)) from None
        own = ray.get_runtime_context().get_node_id()
        order = sorted(range(len(nodes)), key=lambda index: (nodes[index].id != own, nodes[index].host))
        self._nodes, self._agents = [nodes[index] for index in order], [agents[index] for index in order]
        self._bundles = order
        if cluster.host == LOOPBACK:
            self._be_one_machine()
        os.environ |= no_proxy(*(node.host for node in self._nodes))

    def __len__(self) -> int:
        return len(self._nodes)

    def options(self, place: Place, *, devices: bool = False, environment: dict[str, str] | None = None) -> dict[str, Any]:
        """Ray's options for an actor at a place; with `devices` it sees the GPUs of the place and no others.

        If its node is lost, an actor without devices starts on the driver's node.
        """
        variables = dict(environment or {})
        if devices:
            variables |= OWN_DEVICES | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus(place)))}
        node = self._nodes[place.node]
        if not devices and node.id is not None and node.id not in _alive():
            node = self._nodes[0]
        if node.id is not None:  # its environment is not ours
            variables |= no_proxy(*(node.host for node in self._nodes))
        options: dict[str, Any] = {"num_cpus": 0, "runtime_env": _started_with(variables)} if variables else {"num_cpus": 0}
        if node.id is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        return options

    def gpus(self, place: Place) -> list[int]:
        """The GPUs of a place as its node numbers them."""
        return [self._nodes[place.node].gpus[gpu] for gpu in place.gpus]

    def host(self, node: int) -> str:
        """The address of a node."""
        return self._nodes[node].host

    def listen(self, node: int) -> str:
        """The address that programs bind on a node: for 0.0.0.0 the one by which Ray knows it, not all of its addresses."""
        return self._nodes[node].host if self._cluster.host == "0.0.0.0" else self._cluster.host

    def replace_lost(self, number: int) -> None:
        """Gives the number of a lost node to a spare one of the cluster, or without GPUs to another node of the run.

        Takes up to `RESERVE_TIMEOUT_SECONDS`; does nothing if the node is alive. Raises ServerError if no machine is left.
        """
        with self._replacing:
            lost, alive = self._nodes[number], _alive()
            if lost.id is None or lost.id in alive:
                return
            if alive - {node.id for node in self._nodes} and self._take_spare(number):
                return
            others = [index for index, node in enumerate(self._nodes) if node.id in alive]
            if self._cluster.gpus_per_node or not others:
                raise ServerError(f"the node {lost.host} is lost, and Ray has no other with the GPUs of one")
            self._nodes[number], self._agents[number] = self._nodes[others[-1]], self._agents[others[-1]]

    def take_port(self, node: int, wanted: int, key: str) -> int:
        """Returns `wanted`, or a free port of the node if that is 0, and none twice. Raises ServerError if it is in use."""
        listen = self._cluster.host
        while True:
            try:
                if self._nodes[node].id is None:
                    port = free_port(listen, wanted)
                else:
                    answer: Any = ray.get(self._agents[node].free_port.remote(listen, wanted), timeout=PORT_TIMEOUT_SECONDS)
                    port = int(answer)
            except OSError as error:
                reason = getattr(error, "cause", error)
                raise ServerError(
                    f"{key}: port {wanted} on {self.host(node)} is not free ({reason}); choose another, or 0"
                ) from None
            if (taken := (self._nodes[node].id or "", port)) not in self._taken:
                self._taken.add(taken)
                return port
            if wanted:
                raise ServerError(f"{key}: port {wanted} is given to another program of this run; choose another, or 0")

    def _agent(self, bundle: int) -> Any:
        place = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=bundle)
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": self._cluster.gpus_per_node, "scheduling_strategy": place}
        return ray.remote(NodeAgent).options(**options).remote()

    def _take_spare(self, number: int) -> bool:
        """True if Ray moved the bundle of a lost node to a spare one in time."""
        agent = self._agent(self._bundles[number])
        try:
            node: Any = ray.get(agent.describe.remote(), timeout=RESERVE_TIMEOUT_SECONDS)
        except (GetTimeoutError, RayActorError):
            ray.kill(agent)
            return False
        if self._cluster.host == LOOPBACK and node.host == self._nodes[0].host:
            node = replace(node, host=LOOPBACK)
        self._nodes[number], self._agents[number] = node, agent
        return True

    def _be_one_machine(self) -> None:
        """Uses the loopback address if all nodes are one machine. Raises ServerError if they are several."""
        if len({node.host for node in self._nodes}) > 1:
            found = self._nodes
            self.release()
            raise ServerError(_unreachable(found))
        self._nodes = [replace(node, host=LOOPBACK) for node in self._nodes]

    def release(self) -> None:
        """Gives the nodes back."""
        agents, self._agents = self._agents, []
        for agent in agents:
            ray.kill(agent)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def _started_with(variables: dict[str, str]) -> dict[str, Any]:
    """Ray's environment for an actor with these variables. Ray inserts the interpreter's path into a bash command unquoted."""
    path = shlex.quote(sys.executable)
    return {"env_vars": variables} | ({} if path == sys.executable else {"py_executable": path})


def _alive() -> set[str]:
    """Ids of the nodes that Ray considers alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _unreachable(nodes: list[Node]) -> str:
    return (
        f"cluster.host={LOOPBACK}: servers there cannot be reached from the other nodes ({', '.join(n.host for n in nodes)}); "
        "use 0.0.0.0, or the address of a network that all nodes share"
    )


def _this_host(listen: str) -> str:
    return ray.util.get_node_ip_address() if listen == "0.0.0.0" else listen


def _visible_gpus(count: int) -> tuple[int, ...]:
    """The first GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = [int(gpu) for gpu in visible.split(",") if gpu.strip().isdigit()] if visible else list(range(count))
    return tuple(numbers[:count])


def _missing(num_nodes: int, gpus_per_node: int) -> str:
    alive = [node for node in ray.nodes() if node["Alive"]]
    found = ", ".join(f"{node['NodeManagerAddress']} with {node['Resources'].get('GPU', 0):g} GPUs" for node in alive)
    return (
        f"Ray gave no {num_nodes} node(s) with {gpus_per_node} free GPUs each within {RESERVE_TIMEOUT_SECONDS:.0f} s; alive are: "
        f"{found}. Start Ray on more nodes (scripts/ray_up.sh), wait for other runs, or lower cluster.num_nodes"
    )
