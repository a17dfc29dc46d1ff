"""Parallel sizes against the model and the GPUs, the way of the weights, and Megatron's own fields."""

import ast
import difflib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from vime.config import ModelConfig, RunConfig, ServedModelConfig, WeightTransfer
from vime.errors import Problem
from vime.placement import DIRECT, takes_turns, trained_servers_have_trainers

OWN_FIELDS = {
    "num_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "num_attention_heads": "model.num_attention_heads",
    "num_query_groups": "model.num_key_value_heads",
    "kv_channels": "model.head_dim",
    "ffn_hidden_size": "model.intermediate_size",
    "num_moe_experts": "model.num_experts",
    "params_dtype": "trainer.precision",
    "bf16": "trainer.precision",
    "tensor_model_parallel_size": "trainer.tensor_parallel_size",
    "pipeline_model_parallel_size": "trainer.pipeline_parallel_size",
}
"""Fields of Megatron's that have a setting of their own, which plan, servers and checks read too."""
MEGATRON_SOURCES = ("core/transformer/transformer_config.py", "core/model_parallel_config.py")


def trainer_shards(config: RunConfig) -> list[Problem]:
    """Heads, widths and layers can be split as asked."""
    trainer, model = config.trainer, config.model
    problems = _tensor_shards("trainer.tensor_parallel_size", trainer.tensor_parallel_size, model)
    stages = trainer.pipeline_parallel_size
    if stages > 0 and model.num_layers % stages:
        remedy = f"must divide model.num_layers={model.num_layers}"
        problems.append(Problem(key="trainer.pipeline_parallel_size", value=stages, remedy=remedy))
    for name, served in config.serving.models.items():
        if served.trained and not served.urls:
            problems += _tensor_shards(f"serving.models.{name}.tensor_parallel_size", served.tensor_parallel_size, model)
    return problems


def trainer_gpus(config: RunConfig) -> list[Problem]:
    """On GPUs, every trainer rank has one of its own and none is idle."""
    trainer, cluster = config.trainer, config.cluster
    ranks = trainer.tensor_parallel_size * trainer.pipeline_parallel_size * trainer.data_parallel_size
    if cluster.gpus_per_node == 0 or ranks == cluster.num_trainer_gpus:
        return []
    remedy = (
        f"trainer.tensor_parallel_size={trainer.tensor_parallel_size} × trainer.pipeline_parallel_size="
        f"{trainer.pipeline_parallel_size} × trainer.data_parallel_size={trainer.data_parallel_size} make {ranks} ranks, one "
        f"per GPU; change these sizes, or give {ranks}"
    )
    return [Problem(key="cluster.num_trainer_gpus", value=cluster.num_trainer_gpus, remedy=remedy)]


def server_gpus(config: RunConfig) -> list[Problem]:
    """On GPUs, all servers that this run starts fit on the GPUs for servers (without any, `serving.urls` asks for addresses)."""
    cluster, local = config.cluster, {n: m for n, m in config.serving.models.items() if not m.urls}
    wanted = sum(model.num_replicas * model.tensor_parallel_size for model in local.values())
    if 0 in (cluster.gpus_per_node, cluster.num_server_gpus) or wanted <= cluster.num_server_gpus:
        return []
    parts = ", ".join(f"{name}: {_gpus_of(model)}" for name, model in local.items())
    remedy = f"the servers need {wanted} ({parts}); use fewer replicas, or give serving.models.<name>.urls of running ones"
    return [Problem(key="cluster.num_server_gpus", value=cluster.num_server_gpus, remedy=remedy)]


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
    """The chosen transport can work where trainer and servers stand."""
    cluster, way = config.cluster, config.cluster.weight_transfer
    on_gpu = cluster.gpus_per_node > 0
    external = any(model.urls for model in config.serving.models.values() if model.trained)
    reason = None
    if way in (WeightTransfer.ipc, WeightTransfer.nccl) and not on_gpu:
        reason = "needs GPUs; use auto, shm or gloo"
    elif way is WeightTransfer.gloo and on_gpu:
        reason = "is for machines without GPUs; use auto, ipc or nccl"
    elif way in (*DIRECT, WeightTransfer.shm) and external:
        reason = "needs servers that this run starts, but the trained model has urls; use disk"
    elif way is WeightTransfer.shm and cluster.num_nodes > 1:
        reason = "needs trainer and servers on one machine; use auto or disk"
    elif way is WeightTransfer.ipc and not (cluster.colocated and trained_servers_have_trainers(config)):
        reason = "needs a trainer rank on every GPU of the trained model's servers (cluster.colocated=true); use auto or nccl"
    elif way is WeightTransfer.nccl and cluster.colocated:
        reason = "needs GPUs of their own for trainer and servers (cluster.colocated=false); use auto or ipc"
    return [Problem(key="cluster.weight_transfer", value=way.value, remedy=reason)] if reason else []


def turns(config: RunConfig) -> list[Problem]:
    """Trainer and servers that share GPUs are synchronous."""
    if not takes_turns(config) or config.rollout.max_staleness <= 0:
        return []
    remedy = "trainer and servers take turns on the GPUs (cluster.colocated=true): give 0, or choose cluster=two_nodes"
    return [Problem(key="rollout.max_staleness", value=config.rollout.max_staleness, remedy=remedy)]


def nodes(config: RunConfig) -> list[Problem]:
    """Several nodes are a running Ray cluster, and no server is cut in two."""
    cluster, problems = config.cluster, []
    if cluster.num_nodes > 1 and cluster.ray_address is None:
        remedy = "several nodes need a running Ray cluster (scripts/ray_up.sh): give its address, or auto"
        problems.append(Problem(key="cluster.ray_address", value=None, remedy=remedy))
    for name, model in config.serving.models.items():
        if 0 < cluster.gpus_per_node < model.tensor_parallel_size and not model.urls:
            key, size = f"serving.models.{name}.tensor_parallel_size", model.tensor_parallel_size
            remedy = f"a server stays on one node, which has cluster.gpus_per_node={cluster.gpus_per_node}: give at most that"
            problems.append(Problem(key=key, value=size, remedy=remedy))
    return problems


def megatron_fields(config: RunConfig) -> list[Problem]:
    """`trainer.megatron_args` are fields of Megatron-core's TransformerConfig."""
    if not config.trainer.megatron_args:
        return []
    known = transformer_config_fields()
    problems = []
    for name, value in config.trainer.megatron_args.items():
        if name in OWN_FIELDS:
            remedy = f"vime sets this from {OWN_FIELDS[name]}: change that"
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


def _tensor_shards(key: str, size: int, model: ModelConfig) -> list[Problem]:
    if size <= 0:
        return []
    parts = {
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "vocab_size": model.vocab_size,
        "intermediate_size": model.moe_intermediate_size if model.num_experts else model.intermediate_size,
    }
    uneven = [f"model.{name}={value}" for name, value in parts.items() if value % size]
    return [Problem(key=key, value=size, remedy=f"must divide {' and '.join(uneven)}")] if uneven else []


def _gpus_of(model: ServedModelConfig) -> str:
    return f"{model.num_replicas} × {model.tensor_parallel_size}"
