"""Parallel sizes must fit the model and the GPUs, the weight transfer the cluster, and `megatron_args` Megatron."""

import ast
import difflib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from vime.cluster.layout import FIRST_STAGE, LAST_STAGE, stage_size, world_size
from vime.cluster.placement import (
    DIRECT,
    memory_share,
    sends_adapters,
    server_groups,
    server_places,
    takes_turns,
    trained_servers_have_trainers,
    transport,
)
from vime.config import ModelConfig, RunConfig, WeightTransfer
from vime.errors import Problem
from vime.preflight.rules.numbers import must_divide
from vime.trainer.megatron_args import REFUSED_ARGS

SIZES = ("tensor_parallel_size", "context_parallel_size", "data_parallel_size", "pipeline_parallel_size")
"""Parallel sizes whose product is the number of ranks."""
UNEVEN_STAGES = (FIRST_STAGE, LAST_STAGE)
MEGATRON_SOURCES = ("core/transformer/transformer_config.py", "core/model_parallel_config.py")


def trainer_shards(config: RunConfig) -> list[Problem]:
    """Tensor-parallel sizes divide the heads, the widths and the vocabulary of the model."""
    trainer, model = config.trainer, config.model
    widths = {} if model.num_experts else {"intermediate_size": model.intermediate_size}
    problems = _tensor_shards("trainer.tensor_parallel_size", trainer.tensor_parallel_size, model, widths)
    for name, served in config.serving.models.items():
        widths = {"moe_intermediate_size" if model.num_experts else "intermediate_size": feed_forward_width(model)}
        for size in sorted({group.settings.tensor_parallel_size for group in server_groups(name, served)}):
            if served.trained:
                problems += _tensor_shards(f"serving.models.{name}.tensor_parallel_size", size, model, widths)
    return problems


def token_shards(config: RunConfig) -> list[Problem]:
    """Tensor parallelism with experts needs sequence parallelism."""
    trainer = config.trainer
    if trainer.sequence_parallel or trainer.tensor_parallel_size <= 1 or not config.model.num_experts:
        return []
    remedy = f"with trainer.tensor_parallel_size={trainer.tensor_parallel_size}, experts need sequence parallelism: use true"
    return [Problem(key="trainer.sequence_parallel", value=False, remedy=remedy)]


def expert_shards(config: RunConfig) -> list[Problem]:
    """The expert-parallel size divides the experts and the ranks of a pipeline stage."""
    trainer, model = config.trainer, config.model
    size, ranks = trainer.expert_parallel_size, stage_size(trainer)
    remedy = None
    if size <= 1:
        return []
    if not model.num_experts:
        remedy = f"the model {model.name} has no experts: use 1"
    elif model.num_experts % size:
        remedy = must_divide(size, {"model.num_experts": model.num_experts})
    elif ranks % size:
        remedy = (
            f"must divide the {ranks} ranks of a pipeline stage, trainer.tensor_parallel_size={trainer.tensor_parallel_size} × "
            f"trainer.context_parallel_size={trainer.context_parallel_size} × "
            f"trainer.data_parallel_size={trainer.data_parallel_size}, among which experts are divided"
        )
    return [Problem(key="trainer.expert_parallel_size", value=size, remedy=remedy)] if remedy else []


def pipeline(config: RunConfig) -> list[Problem]:
    """The layers divide evenly into the stages of the pipeline, and into its rounds if it is interleaved."""
    trainer, model = config.trainer, config.model
    stages, rounds = trainer.pipeline_parallel_size, trainer.virtual_pipeline_parallel_size
    ends = {name: size for name in UNEVEN_STAGES if (size := trainer.megatron_args.get(name)) is not None}
    if wrong := {name: size for name, size in ends.items() if type(size) is not int or size < 1}:
        remedy = "use a whole number of layers, at least 1"
        return [Problem(key=f"trainer.megatron_args.{name}", value=size, remedy=remedy) for name, size in wrong.items()]
    if min(stages, rounds) < 1:
        return []
    if rounds > 1 and stages == 1:
        remedy = "an interleaved pipeline needs several stages: use 1, or a larger trainer.pipeline_parallel_size"
        return [Problem(key="trainer.virtual_pipeline_parallel_size", value=rounds, remedy=remedy)]
    layers, middle = model.num_layers - sum(ends.values()), stages - len(ends)
    if bool(layers) != bool(middle) or layers < 0 or (middle and layers % middle):
        asked = f"must divide model.num_layers={model.num_layers}"
        if ends:
            asked = f"{layers} layers cannot be divided among the {middle} other stages"
        remedy = f"{asked}; uneven stages are set by trainer.megatron_args ({', '.join(UNEVEN_STAGES)})"
        return [Problem(key="trainer.pipeline_parallel_size", value=stages, remedy=remedy)]
    uneven = [size for size in (*ends.values(), layers // middle if middle else 0) if size % rounds]
    if uneven:
        remedy = f"must divide the layers of every stage, but one stage has {uneven[0]} layers"
        return [Problem(key="trainer.virtual_pipeline_parallel_size", value=rounds, remedy=remedy)]
    return []


def trainer_gpus(config: RunConfig) -> list[Problem]:
    """On a cluster with GPUs, each trainer GPU has one trainer rank."""
    trainer, cluster = config.trainer, config.cluster
    ranks = world_size(trainer)
    if cluster.gpus_per_node == 0 or ranks == cluster.num_trainer_gpus:
        return []
    factors = [f"trainer.{name}={getattr(trainer, name)}" for name in SIZES]
    remedy = f"{' × '.join(factors)} make {ranks} ranks, each on one GPU: change these sizes, or use {ranks}"
    return [Problem(key="cluster.num_trainer_gpus", value=cluster.num_trainer_gpus, remedy=remedy)]


def server_gpus(config: RunConfig) -> list[Problem]:
    """The servers that this run starts fit on the GPUs for servers."""
    cluster, models = config.cluster, config.serving.models
    if 0 in (cluster.gpus_per_node, cluster.num_server_gpus):
        return []
    apart = cluster.num_frozen_gpus > 0
    has = {True: cluster.num_server_gpus - cluster.num_frozen_gpus, False: cluster.num_frozen_gpus or cluster.num_server_gpus}
    problems: list[Problem] = []
    for trained in (True, False):
        local = {
            group.name: group.settings
            for name, model in models.items()
            if model.trained is trained
            for group in server_groups(name, model)
        }
        sizes = [model.num_replicas * model.tensor_parallel_size for model in local.values()]
        shared = apart and cluster.share_frozen_gpus and not trained
        wanted = max((model.tensor_parallel_size for model in local.values()), default=0) if shared else sum(sizes)
        if wanted > has[trained]:
            key = "num_frozen_gpus" if apart and not trained else "num_server_gpus"
            parts = ", ".join(f"{name}: {model.num_replicas} × {model.tensor_parallel_size}" for name, model in local.items())
            which = "trained" if trained else "frozen"
            remedy = f"the {which} servers need {wanted} GPUs of {has[trained]} ({parts}): use fewer replicas, or set "
            remedy += "serving.models.<name>.urls to the addresses of running servers"
            problems.append(Problem(key=f"cluster.{key}", value=getattr(cluster, key), remedy=remedy))
    return problems or shared_gpus(config)


def shared_gpus(config: RunConfig) -> list[Problem]:
    """Servers that share a GPU need no more than its memory together."""
    shares: dict[tuple[int, int], dict[str, float]] = {}
    for name, places in server_places(config).items():
        groups = [group for group in server_groups(name, config.serving.models[name]) for _ in range(group.settings.num_replicas)]
        for group, place in zip(groups, places, strict=True):
            for gpu in place.gpus:
                shares.setdefault((place.node, gpu), {})[group.name] = memory_share(config, group.settings)
    for (node, gpu), share in shares.items():
        if len(share) > 1 and sum(share.values()) > 1.0:
            parts = " + ".join(f"{value:g} ({name})" for name, value in share.items())
            remedy = f"the servers on GPU {gpu} of node {node} take more than its memory, {parts}: use smaller shares, or keep "
            remedy += "GPUs for frozen models with cluster.num_frozen_gpus"
            key = f"serving.models.{next(reversed(share))}.gpu_memory_utilization"
            return [Problem(key=key, value=list(share.values())[-1], remedy=remedy)]
    return []


def cluster_gpus(config: RunConfig) -> list[Problem]:
    """Trainer and servers together do not use more GPUs than there are."""
    cluster = config.cluster
    total, trainer, servers = cluster.num_nodes * cluster.gpus_per_node, cluster.num_trainer_gpus, cluster.num_server_gpus
    wanted = max(trainer, servers) if cluster.colocated else trainer + servers
    if wanted <= total:
        return []
    how = "the larger of" if cluster.colocated else "the sum of"
    remedy = (
        f"cluster.num_nodes={cluster.num_nodes} × cluster.gpus_per_node are {total} GPUs, but {how} "
        f"cluster.num_trainer_gpus={trainer} and cluster.num_server_gpus={servers} is {wanted}; choose another cluster="
    )
    return [Problem(key="cluster.gpus_per_node", value=cluster.gpus_per_node, remedy=remedy)]


def weight_transfer(config: RunConfig) -> list[Problem]:
    """The chosen weight transfer works with this placement of trainer and servers."""
    cluster, way = config.cluster, config.cluster.weight_transfer
    on_gpu = cluster.gpus_per_node > 0
    external = any(model.urls for model in config.serving.models.values() if model.trained)
    reason = None
    if way in (WeightTransfer.ipc, WeightTransfer.nccl) and not on_gpu:
        reason = "needs GPUs; use auto, shm or gloo"
    elif way is WeightTransfer.gloo and on_gpu:
        reason = "works only without GPUs; use auto, ipc or nccl"
    elif way in (*DIRECT, WeightTransfer.shm) and external:
        reason = "needs servers that this run starts, but the trained model has urls; use disk"
    elif way is WeightTransfer.shm and cluster.num_nodes > 1:
        reason = "needs trainer and servers on one machine; use auto or disk"
    elif way is WeightTransfer.ipc and not (cluster.colocated and trained_servers_have_trainers(config)):
        reason = "needs a trainer rank on every GPU of the trained model's servers (cluster.colocated=true); use auto or nccl"
    elif way is WeightTransfer.nccl and cluster.colocated:
        reason = "needs separate GPUs for trainer and servers (cluster.colocated=false); use auto or ipc"
    return [Problem(key="cluster.weight_transfer", value=way.value, remedy=reason)] if reason else []


def delta_syncs(config: RunConfig) -> list[Problem]:
    """Differences travel in files, to servers that keep the version before, and are of whole models."""
    if not (number := config.cluster.num_delta_syncs):
        return []
    reason = None
    if (way := transport(config)) in DIRECT:
        reason = f"differences travel in files, and weights by {way.value}: set cluster.weight_transfer=disk, or use 0"
    elif any(model.urls for model in config.serving.models.values() if model.trained):
        reason = "servers given by urls get every version whole: use 0"
    elif sends_adapters(config):
        reason = "adapters are sent whole, since all of their weights change: use 0, or serving.lora=merge"
    return [Problem(key="cluster.num_delta_syncs", value=number, remedy=reason)] if reason else []


def colocation(config: RunConfig) -> list[Problem]:
    """Trainer and servers that share GPUs take turns, so training is synchronous, and they are not kept for a next run."""
    if not takes_turns(config):
        return []
    remedy = "trainer and servers take turns on the GPUs (cluster.colocated=true): use 0, or choose cluster=two_nodes"
    values = {"rollout.max_staleness": config.rollout.max_staleness, "cluster.keep_warm": config.cluster.keep_warm}
    return [Problem(key=key, value=value, remedy=remedy) for key, value in values.items() if value > 0]


def nodes(config: RunConfig) -> list[Problem]:
    """Several nodes need a running Ray cluster, and a server fits on one node."""
    cluster, problems = config.cluster, []
    if cluster.num_nodes > 1 and cluster.ray_address is None:
        remedy = "several nodes need a running Ray cluster (scripts/ray_up.sh): use its address, or auto"
        problems.append(Problem(key="cluster.ray_address", value=None, remedy=remedy))
    for name, model in config.serving.models.items():
        sizes = [group.settings.tensor_parallel_size for group in server_groups(name, model)]
        if 0 < cluster.gpus_per_node < max(sizes, default=0):
            key, size = f"serving.models.{name}.tensor_parallel_size", max(sizes)
            remedy = f"a server cannot span nodes: use at most cluster.gpus_per_node={cluster.gpus_per_node}"
            problems.append(Problem(key=key, value=size, remedy=remedy))
    return problems


def megatron_fields(config: RunConfig) -> list[Problem]:
    """`trainer.megatron_args` are fields of Megatron-core's TransformerConfig."""
    if not config.trainer.megatron_args:
        return []
    known, problems = transformer_config_fields(), []
    for name, value in config.trainer.megatron_args.items():
        if name in REFUSED_ARGS:
            remedy = REFUSED_ARGS[name]
        elif name.startswith("recompute_") and config.trainer.recompute:
            remedy = "trainer.recompute=true already recomputes whole layers: remove this, or set trainer.recompute=false"
        elif known and name not in known:
            match = difflib.get_close_matches(name, known, n=1)
            remedy = "Megatron-core's TransformerConfig has no such field" + (f"; did you mean {match[0]}?" if match else "")
        else:
            continue
        problems.append(Problem(key=f"trainer.megatron_args.{name}", value=value, remedy=remedy))
    return problems


@lru_cache(maxsize=1)
def transformer_config_fields() -> frozenset[str]:
    """Field names read from Megatron's source, because importing it takes seconds; empty if it is not installed."""
    spec = find_spec("megatron")
    roots = [Path(path) for path in spec.submodule_search_locations or []] if spec else []
    names: set[str] = set()
    for file in (root / source for root in roots for source in MEGATRON_SOURCES):
        if file.exists():
            classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
            lines = [line for node in classes for line in node.body if isinstance(line, ast.AnnAssign)]
            names |= {line.target.id for line in lines if isinstance(line.target, ast.Name)}
    return frozenset(names)


def feed_forward_width(model: ModelConfig) -> int:
    """Inner width of an expert, or of the feed-forward layer of a dense model."""
    return model.moe_intermediate_size if model.num_experts else model.intermediate_size


def _tensor_shards(key: str, size: int, model: ModelConfig, widths: dict[str, int]) -> list[Problem]:
    if size <= 0:
        return []
    parts = {name: getattr(model, name) for name in ("num_attention_heads", "num_key_value_heads", "vocab_size")} | widths
    remedy = must_divide(size, {f"model.{name}": value for name, value in parts.items()})
    return [Problem(key=key, value=size, remedy=remedy)] if remedy else []
