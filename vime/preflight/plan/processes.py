"""The sections Placement and Memory of a plan: node, GPUs, port, share of the model and memory of every process."""

from dataclasses import dataclass

from rich.table import Table

from vime.cluster.layout import layers_of, position_of, world_size
from vime.cluster.placement import server_groups, server_places, trainer_places
from vime.config import AlgorithmName, RunConfig
from vime.memory.activations import recomputes
from vime.memory.processes import GIB, server_memory, trainer_memory
from vime.memory.sync import sync_memory
from vime.memory.tokens import batch_bytes, driver_bytes, object_store_bytes
from vime.model.size import kv_bytes_per_token
from vime.preflight.plan.amounts import gib
from vime.preflight.plan.models import num_servers


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One trainer rank or one server: its place, and its memory in bytes by purpose.

    Example: `Part(name="trainer rank 3", node=0, gpus=(3,), memory={"weights": 2_000_000, "optimizer": 12_000_000})`.
    """

    name: str
    node: int
    gpus: tuple[int, ...]
    memory: dict[str, float]
    port: str = ""
    holds: str = ""
    """Share of a trainer rank in the model and the data."""


def parts(config: RunConfig) -> list[Part]:
    """The trainer ranks, then the servers that this run starts."""
    found = [
        Part(
            name=f"trainer rank {rank}",
            node=place.node,
            gpus=place.gpus,
            memory=trainer_memory(config),
            holds=holds(config, rank),
        )
        for rank, place in enumerate(trainer_places(config, world_size(config.trainer)))
    ]
    if config.algorithm.name is AlgorithmName.sft:
        return found
    for name, places in server_places(config).items():
        groups = server_groups(name, config.serving.models[name])
        replicas = [(group, index) for group in groups for index in range(group.settings.num_replicas)]
        for (group, index), place in zip(replicas, places, strict=True):
            port = str(group.settings.port + index) if group.settings.port else "free"
            memory = server_memory(config, group.settings)
            found.append(Part(name=f"server {group.name}-{index}", node=place.node, gpus=place.gpus, memory=memory, port=port))
    return found


def holds(config: RunConfig, rank: int) -> str:
    """The share of a trainer rank in the model and the data, for example `tensor 1 of 2, layers 0-13, data 3 of 4`."""
    trainer, model, own = config.trainer, config.model, position_of(rank, config.trainer)
    runs = layers_of(own.pipeline, trainer, model.num_layers)
    words = [("layers " + " and ".join(f"{run.start}-{run.stop - 1}" for run in runs), trainer.pipeline_parallel_size)]
    if model.num_experts:
        count = model.num_experts // trainer.expert_parallel_size
        words.append((f"experts {own.expert * count}-{(own.expert + 1) * count - 1}", trainer.expert_parallel_size))
    for name in ("tensor", "context", "data"):
        size = getattr(trainer, f"{name}_parallel_size")
        words.append((f"{name} {getattr(own, name)} of {size}", size))
    return ", ".join(word for word, size in words if size > 1) or "all"


def memory(config: RunConfig) -> list[str]:
    """The memory of each kind of process, warnings where a GPU is too small, the size of the KV cache, and tokens in memory."""
    lines = []
    seen: dict[str, Part] = {}
    for part in parts(config):
        seen.setdefault("each trainer rank" if part.name.startswith("trainer") else part.name.rpartition("-")[0], part)
    for name, part in seen.items():
        pieces = ", ".join(f"{piece} {gib(size)}" for piece, size in part.memory.items() if size)
        lines.append(f"{name}: {gib(sum(part.memory.values()))} = {pieces}")
    if config.algorithm.kl_coefficient and config.cluster.gpus_per_node:
        lines.append(f"reference model: {gib(trainer_memory(config)['weights'])} of main memory for each trainer rank")
    if recomputes(config.trainer):
        lines.append("recomputation: layers keep only their inputs, and activations are computed again in the backward pass")
    limit = config.cluster.gpu_memory_gib * GIB
    for name, part in seen.items():
        if config.cluster.gpus_per_node and sum(part.memory.values()) > limit:
            remedy = "use larger parallel sizes, trainer.recompute=true or a smaller trainer.max_tokens_per_micro_batch"
            lines.append(f"! {name} needs more than the {config.cluster.gpu_memory_gib:g} GiB of a GPU: {remedy}")
    for moment, held in sync_memory(config).items():
        pieces = ", ".join(f"{piece} {gib(size)}" for piece, size in held.items() if size)
        lines.append(f"a shared GPU at a sync, {moment}: {gib(sum(held.values()))} = {pieces}")
    actor = next((model for model in config.serving.models.values() if model.trained and not model.urls), None)
    if actor is not None and config.algorithm.name is not AlgorithmName.sft:
        per_token = kv_bytes_per_token(config.model, config.trainer.precision) / actor.tensor_parallel_size
        tokens = server_memory(config, actor)["KV cache"] / per_token
        lines.append(f"KV cache of one actor server: {tokens:,.0f} tokens, {tokens / actor.max_model_len:,.1f} full contexts")
    batch, store, driver = (gib(size(config)) for size in (batch_bytes, object_store_bytes, driver_bytes))
    lines.append(
        f"tokens of a batch: at most {batch}, if every expected call fills its context; Ray's object store has {store} of shared "
        f"memory, and finished groups take at most {driver} in the driver"
    )
    return lines


def placement_table(config: RunConfig) -> Table:
    """A table with one row for each process."""
    table = Table("process", "node", "GPU", "port", "memory", "holds", title="Placement", title_justify="left")
    for part in parts(config):
        gpus = ", ".join(map(str, part.gpus)) or "-"
        table.add_row(part.name, str(part.node), gpus, part.port or "-", gib(sum(part.memory.values())), part.holds or "-")
    for name, model in config.serving.models.items():
        if num_servers(name, model) > 1:
            table.add_row(f"router {name}", "0", "-", "free", "-", "-")
        for url in model.urls:
            table.add_row(f"external {name}", "-", "-", url, "-", "-")
    retrieval = config.retrieval
    if retrieval.url is not None:
        table.add_row("external retrieval", "-", "-", retrieval.url, "-", "-")
    elif retrieval.is_started:
        table.add_row("retrieval", "0", "-", str(retrieval.port or "free"), "-", "-")
    if config.reward_service.url is not None:
        table.add_row("external rewards", "-", "-", config.reward_service.url, "-", "-")
    return table
