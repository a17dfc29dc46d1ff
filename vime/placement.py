"""Where every process runs and how weights reach the servers: arithmetic on the configuration, for the run and its plan.

GPUs are numbered through all nodes. Trainer ranks take the first ones; servers share them where `cluster.colocated`, and
follow them where not. Without GPUs, several nodes are used whole: the first trains, the others serve.
"""

from dataclasses import dataclass

from vime.config import RunConfig, WeightTransfer

DIRECT = (WeightTransfer.ipc, WeightTransfer.nccl, WeightTransfer.gloo)
"""Transports that pass weights from process to process, without files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A node by its number, and numbers of GPUs on it. Example: `Place(node=1, gpus=(0, 1))`; on a CPU `gpus` is empty."""

    node: int
    gpus: tuple[int, ...] = ()


def trainer_places(config: RunConfig, num_ranks: int) -> list[Place]:
    """One place per trainer rank."""
    if not config.cluster.gpus_per_node:
        return [Place(node=0)] * num_ranks
    return _on_gpus(config, [1] * num_ranks, first=0)


def server_places(config: RunConfig) -> dict[str, list[Place]]:
    """Places of the servers that this run starts, by the name of the served model, one per replica."""
    cluster = config.cluster
    owners = [(n, m.tensor_parallel_size) for n, m in config.serving.models.items() if not m.urls for _ in range(m.num_replicas)]
    if cluster.gpus_per_node:
        first = 0 if cluster.colocated else cluster.num_trainer_gpus
        places = _on_gpus(config, [size for _, size in owners], first=first)
    else:
        nodes = list(range(cluster.num_nodes)) if cluster.colocated else list(range(1, cluster.num_nodes)) or [0]
        places = [Place(node=nodes[position % len(nodes)]) for position in range(len(owners))]
    found: dict[str, list[Place]] = {name: [] for name in config.serving.models}
    for (name, _), place in zip(owners, places, strict=True):
        found[name].append(place)
    return found


def takes_turns(config: RunConfig) -> bool:
    """Whether trainer and servers share GPUs, so that one sleeps while the other works."""
    return config.cluster.colocated and config.cluster.gpus_per_node > 0 and config.cluster.num_server_gpus > 0


def transport(config: RunConfig) -> WeightTransfer:
    """How weights travel: as configured, and for `auto` the fastest way that these places allow."""
    cluster = config.cluster
    if cluster.weight_transfer is not WeightTransfer.auto:
        return cluster.weight_transfer
    if any(model.trained and model.urls for model in config.serving.models.values()):
        return WeightTransfer.disk
    if not cluster.gpus_per_node:
        return WeightTransfer.shm if cluster.num_nodes == 1 else WeightTransfer.disk
    if not takes_turns(config):
        return WeightTransfer.nccl
    if trained_servers_have_trainers(config):
        return WeightTransfer.ipc
    return WeightTransfer.shm if cluster.num_nodes == 1 else WeightTransfer.disk


def trained_servers_have_trainers(config: RunConfig) -> bool:
    """Whether every GPU that serves the trained model holds a trainer rank too, whose memory its server can open."""
    per_node = config.cluster.gpus_per_node
    places = server_places(config)
    served = [place for name, model in config.serving.models.items() if model.trained for place in places[name]]
    return all(place.node * per_node + gpu < config.cluster.num_trainer_gpus for place in served for gpu in place.gpus)


def _on_gpus(config: RunConfig, sizes: list[int], *, first: int) -> list[Place]:
    """GPUs for processes of these sizes, in order from the GPU `first` on; none is cut in two by the end of a node."""
    per_node, places, position = config.cluster.gpus_per_node, [], first
    for size in sizes:
        if position % per_node + size > per_node:
            position += per_node - position % per_node
        node, start = divmod(position, per_node)
        places.append(Place(node=node, gpus=tuple(range(start, start + size))))
        position += size
    return places
