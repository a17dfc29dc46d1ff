"""Memory of GPUs that trainer and servers share."""

from vime.cluster.placement import memory_share
from vime.config import AlgorithmName, Mode, RunConfig
from vime.errors import Problem
from vime.memory.processes import GIB
from vime.memory.sync import sync_memory
from vime.preflight.rules import numbers


def at_a_sync(config: RunConfig) -> list[Problem]:
    """At a weight sync, trainer and servers fit together into the memory of a GPU."""
    trained = next((name for name, model in config.serving.models.items() if model.trained), None)
    is_synced = config.mode is not Mode.eval and config.algorithm.name is not AlgorithmName.sft
    if trained is None or not is_synced or numbers.ranges(config):
        return []
    problems = []
    for moment, parts in sync_memory(config).items():
        total, limit = sum(parts.values()) / GIB, config.cluster.gpu_memory_gib
        if total <= limit:
            continue
        held = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts.items())
        key, value = f"serving.models.{trained}.gpu_memory_utilization", memory_share(config, config.serving.models[trained])
        remedy = f"use at most {max(0.0, value - (total - limit) / limit - 0.005):.2f}, or split the trainer's weights further"
        if moment == "loading":
            key, value = "trainer.tensor_parallel_size", config.trainer.tensor_parallel_size
            remedy = (
                "split the weights further, here or among the servers, or choose a cluster with separate GPUs for trainer and "
                "servers"
            )
        problem = f"at a weight sync a shared GPU of {limit:g} GiB would need {total:.1f} GiB ({held}): {remedy}"
        problems.append(Problem(key=key, value=value, remedy=problem))
    return problems
