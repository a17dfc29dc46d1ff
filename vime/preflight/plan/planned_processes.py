"""The sections Placement and Memory of a plan: node, GPUs, port, share of the model and memory of every process."""

from dataclasses import dataclass, replace

from rich.table import Table

from vime.cluster.layout import layers_of, position_of, world_size
from vime.cluster.placement import server_groups, server_places, takes_turns, trainer_places
from vime.config import AlgorithmName, LoraConfig, RunConfig
from vime.memory.activations import recomputes
from vime.memory.kv_cache import kv_cache_tokens, trained_groups
from vime.memory.processes import GIB, host_memory, reserved_bytes, server_memory, trainer_memory
from vime.memory.sync import sync_memory
from vime.memory.tokens import batch_bytes, driver_bytes, object_store_bytes
from vime.model.size import state_bytes
from vime.preflight.plan.amounts import gib
from vime.preflight.plan.models import num_servers

MOMENTS = {"loading": "while the servers load the weights", "probing": "while the servers' logprobs are compared"}
"""The moments of a weight sync (`vime.memory.sync`) in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedProcess:
    """One trainer rank or one server: its place, and its memory in bytes by purpose.

    Example: `PlannedProcess(name="trainer rank 3", node=0, gpus=(3,), memory={"weights": 2_000_000, "optimizer": 12_000_000})`.
    """

    name: str
    node: int
    gpus: tuple[int, ...]
    memory: dict[str, float]
    port: str = ""
    holds: str = ""
    """Share of a trainer rank in the model and the data."""


def parts(config: RunConfig) -> list[PlannedProcess]:
    """The trainer ranks, then the servers that this run starts."""
    found = [
        PlannedProcess(
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
            port = str(group.settings.port + index) if group.settings.port else "any free"
            memory = server_memory(config, group.settings)
            found.append(
                PlannedProcess(name=f"server {group.name}-{index}", node=place.node, gpus=place.gpus, memory=memory, port=port)
            )
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
    on_gpus, limit = config.cluster.gpus_per_node > 0, config.cluster.gpu_memory_gib
    seen: dict[str, PlannedProcess] = {}
    for part in parts(config):
        seen.setdefault("each trainer rank" if part.name.startswith("trainer") else part.name.rpartition("-")[0], part)
    where = f", on each GPU of {limit:g} GiB" if on_gpus else ""
    lines = [f"{name}{where}: {_sum(part.memory)}{_uncounted(name, part.memory, on_gpus)}" for name, part in seen.items()]
    if pinned := host_memory(config):
        ranks = min(world_size(config.trainer), config.cluster.gpus_per_node)
        on_a_node = f"{gib(ranks * sum(pinned.values()))} on a node of {ranks}"
        lines.append(f"page-locked host memory of each trainer rank: {_sum(pinned)}; {on_a_node}")
    if recomputes(config.trainer):
        lines.append("activation checkpointing: layers store only their inputs, and the backward pass recomputes the activations")
    lines += _without_recomputation(config) + _without_adapters(config)
    reserve = reserved_bytes(config)
    if on_gpus:
        lines.append(
            f"in reserve on each GPU of a trainer rank, for contexts, libraries, NCCL and sleeping servers: {gib(reserve)}"
        )
    for name, part in seen.items():
        kept = reserve if name == "each trainer rank" else 0.0
        if on_gpus and sum(part.memory.values()) + kept > limit * GIB:
            remedy = "use larger parallel sizes, trainer.recompute=true or a smaller trainer.max_tokens_per_micro_batch"
            lines.append(f"! {name} needs more than the {limit:g} GiB of a GPU: {remedy}")
    lines += held_by_gpus(config) if on_gpus else []
    lines += [
        f"a GPU that trainer and servers share, during a weight sync, {MOMENTS[moment]}: {_sum(held)}"
        for moment, held in sync_memory(config).items()
    ]
    batch, store, driver = (gib(size(config)) for size in (batch_bytes, object_store_bytes, driver_bytes))
    return [
        *lines,
        *_kv_caches(config),
        f"tokens of a batch, in host memory: at most {batch}, if every expected call fills its context",
        f"Ray's object store: {store} of shared memory, which holds such a batch",
        f"finished groups that wait in the driver, in host memory: at most {driver}",
    ]


def _without_recomputation(config: RunConfig) -> list[str]:
    """The memory that `trainer.recompute=false` would need, where a GPU recomputes activations; a third less arithmetic."""
    if not (config.trainer.recompute and config.cluster.gpus_per_node):
        return []
    needed = sum(trainer_memory(replace(config, trainer=replace(config.trainer, recompute=False))).values())
    reserve, limit = reserved_bytes(config), config.cluster.gpu_memory_gib * GIB
    fits = "would fit" if needed + reserve <= limit else "would not fit"
    return [f"trainer.recompute=false {fits}: {gib(needed)} and {gib(reserve)} in reserve of {gib(limit)}"]


def _without_adapters(config: RunConfig) -> list[str]:
    """The memory that a trainer rank with adapters saves beside one that trains all weights."""
    if not config.trainer.lora.rank:
        return []
    held, whole = trainer_memory(config), trainer_memory(replace(config, trainer=replace(config.trainer, lora=LoraConfig())))
    saved = {part: whole[part] - held[part] for part in ("gradients", "optimizer", "reference", "activations")}
    return [f"adapters save each trainer rank {_sum({part: size for part, size in saved.items() if size > 0})}"]


def held_by_gpus(config: RunConfig) -> list[str]:
    """The memory that processes take on a GPU, one line for all GPUs with the same content."""
    gpus: dict[tuple[int, int], list[PlannedProcess]] = {}
    for part in parts(config):
        for gpu in part.gpus:
            gpus.setdefault((part.node, gpu), []).append(part)
    limit, lines = config.cluster.gpu_memory_gib * GIB, list[str]()
    for held in gpus.values():
        sizes = {
            ("trainer rank" if p.name.startswith("trainer") else p.name.rpartition("-")[0]): sum(p.memory.values()) for p in held
        }
        servers = sum(size for name, size in sizes.items() if name.startswith("server"))
        trainers, turns = sum(sizes.values()) - servers, takes_turns(config) and len(sizes) > 1
        most = max(servers, trainers) if turns else servers + trainers
        what = ", ".join(f"{name} {gib(size)}" for name, size in sizes.items())
        lines.append(f"a GPU with {what}{' (never at once)' if turns else ''}: at most {gib(most)} of its {gib(limit)}")
    return list(dict.fromkeys(lines))


def _sum(held: dict[str, float]) -> str:
    """A total and its parts, for example `15.0 GiB = weights 3.0 GiB + KV cache 12.0 GiB`."""
    return f"{gib(sum(held.values()))} = {' + '.join(f'{piece} {gib(size)}' for piece, size in held.items() if size)}"


def _uncounted(name: str, held: dict[str, float], on_gpus: bool) -> str:
    """The remark on a frozen model, whose size the configuration does not tell."""
    if not name.startswith("server") or held["weights"]:
        return ""
    return f"{' less' if on_gpus else ', without'} its weights, whose size is not known here"


def _kv_caches(config: RunConfig) -> list[str]:
    """Lines on the KV cache of each group of the trained model's servers: the tokens that one server holds on all its GPUs."""
    if config.algorithm.name is AlgorithmName.sft:
        return []
    lines = []
    for group in trained_groups(config):
        gpus, longest = group.settings.tensor_parallel_size, group.settings.max_model_len
        tokens = kv_cache_tokens(config, group.settings)
        states = group.settings.max_num_seqs * state_bytes(config.model, config.trainer.precision)
        beside = f", beside {gib(states)} for states of max_num_seqs={group.settings.max_num_seqs} sequences" if states else ""
        where = f" on its {gpus} GPUs together" if gpus > 1 else ""
        lines.append(
            f"KV cache of one server {group.name}{where}: {tokens:,.0f} tokens, {tokens / longest:,.0f} sequences of "
            f"max_model_len={longest:,}{beside}"
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
            table.add_row(f"router {name}", "0", "-", "any free", "-", "-")
        for url in model.urls:
            table.add_row(f"external {name}", "-", "-", url, "-", "-")
    retrieval = config.retrieval
    if retrieval.url is not None:
        table.add_row("external retrieval", "-", "-", retrieval.url, "-", "-")
    elif retrieval.is_started:
        table.add_row("retrieval", "0", "-", str(retrieval.port or "any free"), "-", "-")
    if config.reward_service.url is not None:
        table.add_row("external rewards", "-", "-", config.reward_service.url, "-", "-")
    return table
