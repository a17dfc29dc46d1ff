"""The places of all processes, and the transport of weights to the servers: arithmetic on the configuration.

GPUs are numbered through all nodes. Trainer ranks take the first ones; servers share them where `cluster.colocated`, and
follow them where not. Frozen models have the last `cluster.num_frozen_gpus` to themselves. Without GPUs, several nodes are used
whole: the first trains, the others serve.
"""

from dataclasses import dataclass, replace

from vime.config import LoraDelivery, Quantization, RunConfig, ServedModelConfig, ServerRole, WeightTransfer

DIRECT = (WeightTransfer.ipc, WeightTransfer.nccl, WeightTransfer.gloo)
"""Transports from process to process, without files."""
SHARE_OF_GPU, SHARE_OF_HOST = 0.8, 0.05
"""`gpu_memory_utilization` where it is null."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A node by its number, and numbers of GPUs on it. Example: `Place(node=1, gpus=(0, 1))`; on a CPU `gpus` is empty."""

    node: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerGroup:
    """Servers of one model with equal settings. Example: `ServerGroup(name="actor-decode", role=ServerRole.decode, settings=…)`.

    `settings` is the model's configuration with the group's in it; servers are called `<name>-<number>`.
    """

    name: str
    role: ServerRole
    settings: ServedModelConfig


def memory_share(config: RunConfig, model: ServedModelConfig) -> float:
    """The share of a GPU's memory, or without GPUs of the host's, that one server of a model takes."""
    if model.gpu_memory_utilization is not None:
        return model.gpu_memory_utilization
    return SHARE_OF_GPU if config.cluster.gpus_per_node else SHARE_OF_HOST


def server_groups(name: str, model: ServedModelConfig) -> list[ServerGroup]:
    """The groups of servers of a model that this run starts; a model without `groups` has one."""
    if model.urls:
        return []
    if not model.groups:
        return [ServerGroup(name=name, role=ServerRole.regular, settings=model)]
    groups = []
    for group_name, group in model.groups.items():
        own = {
            "tensor_parallel_size": group.tensor_parallel_size,
            "max_num_seqs": group.max_num_seqs,
            "gpu_memory_utilization": group.gpu_memory_utilization,
        }
        settings = replace(
            model,
            groups={},
            num_replicas=group.num_replicas,
            port=group.port,
            vllm_args={**model.vllm_args, **group.vllm_args},
            **{key: value for key, value in own.items() if value is not None},
        )
        groups.append(ServerGroup(name=f"{name}-{group_name}", role=group.role, settings=settings))
    return groups


def trainer_places(config: RunConfig, num_ranks: int) -> list[Place]:
    """One place per trainer rank."""
    if not config.cluster.gpus_per_node:
        return [Place(node=0)] * num_ranks
    return _on_gpus(config, [1] * num_ranks, first=0)


def server_places(config: RunConfig) -> dict[str, list[Place]]:
    """Places of the servers that this run starts, by the name of the served model: one per replica, group by group."""
    cluster = config.cluster
    groups = [(name, group.settings) for name, model in config.serving.models.items() for group in server_groups(name, model)]
    owners = [(name, of.tensor_parallel_size) for name, of in groups for _ in range(of.num_replicas)]
    found: dict[str, list[Place]] = {name: [] for name in config.serving.models}
    if cluster.gpus_per_node:
        first = 0 if cluster.colocated else cluster.num_trainer_gpus
        frozen = {name for name, model in config.serving.models.items() if not model.trained}
        _place(found, config, [owner for owner in owners if owner[0] not in frozen], first=first)
        own = cluster.num_server_gpus - cluster.num_frozen_gpus if cluster.num_frozen_gpus else 0
        shared = cluster.num_frozen_gpus if cluster.share_frozen_gpus else 0
        _place(found, config, [owner for owner in owners if owner[0] in frozen], first=first + own, num_shared=shared)
        return found
    nodes = list(range(cluster.num_nodes)) if cluster.colocated else list(range(1, cluster.num_nodes)) or [0]
    for position, (name, _) in enumerate(owners):
        found[name].append(Place(node=nodes[position % len(nodes)]))
    return found


def _place(
    found: dict[str, list[Place]], config: RunConfig, owners: list[tuple[str, int]], *, first: int, num_shared: int = 0
) -> None:
    """Adds places of servers (model, number of GPUs) to `found`, from GPU `first` on; `num_shared` GPUs are used round-robin."""
    sizes = [size for _, size in owners]
    places = _in_turn(config, sizes, first, num_shared) if num_shared else _on_gpus(config, sizes, first=first)
    for (name, _), place in zip(owners, places, strict=True):
        found[name].append(place)


def _in_turn(config: RunConfig, sizes: list[int], first: int, num_gpus: int) -> list[Place]:
    """Like `_on_gpus`, but begins again at `first` when all `num_gpus` are used."""
    places: list[Place] = []
    while len(places) < len(sizes):
        fitting = [
            place
            for place in _on_gpus(config, sizes[len(places) :], first=first)
            if place.node * config.cluster.gpus_per_node + place.gpus[-1] < first + num_gpus
        ]
        places += fitting or _on_gpus(config, sizes[len(places) :], first=first)
    return places


def takes_turns(config: RunConfig) -> bool:
    """True if trainer and servers share GPUs, so that one sleeps while the other works."""
    return config.cluster.colocated and config.cluster.gpus_per_node > 0 and config.cluster.num_server_gpus > 0


def transport(config: RunConfig) -> WeightTransfer:
    """The transport of weights: as configured, or for `auto` the fastest that these places allow."""
    cluster = config.cluster
    if cluster.weight_transfer is not WeightTransfer.auto:
        return cluster.weight_transfer
    if sends_adapters(config):
        return WeightTransfer.shm if cluster.num_nodes == 1 else WeightTransfer.disk
    if any(model.trained and model.urls for model in config.serving.models.values()):
        return WeightTransfer.disk
    if not cluster.gpus_per_node:
        return WeightTransfer.shm if cluster.num_nodes == 1 else WeightTransfer.disk
    if not takes_turns(config):
        return WeightTransfer.nccl
    if trained_servers_have_trainers(config):
        return WeightTransfer.ipc
    return WeightTransfer.shm if cluster.num_nodes == 1 else WeightTransfer.disk


def sends_adapters(config: RunConfig) -> bool:
    """True if servers get the trained adapters alone, in files, and have the base from its checkpoint."""
    return config.trainer.lora.rank > 0 and config.serving.lora is LoraDelivery.adapter


def sends_integers(config: RunConfig) -> bool:
    """True if the trainer quantizes the weights for the servers of the trained model."""
    return any(model.trained and model.quantization is Quantization.int8 for model in config.serving.models.values())


def trained_servers_have_trainers(config: RunConfig) -> bool:
    """True if every GPU that serves the trained model also holds a trainer rank, whose memory its server can open."""
    per_node = config.cluster.gpus_per_node
    places = server_places(config)
    served = [place for name, model in config.serving.models.items() if model.trained for place in places[name]]
    return all(place.node * per_node + gpu < config.cluster.num_trainer_gpus for place in served for gpu in place.gpus)


def _on_gpus(config: RunConfig, sizes: list[int], *, first: int) -> list[Place]:
    """Places for processes of these numbers of GPUs, in order from GPU `first` on; no process spans two nodes."""
    per_node, places, position = config.cluster.gpus_per_node, [], first
    for size in sizes:
        if position % per_node + size > per_node:
            position += per_node - position % per_node
        node, start = divmod(position, per_node)
        places.append(Place(node=node, gpus=tuple(range(start, start + size))))
        position += size
    return places
