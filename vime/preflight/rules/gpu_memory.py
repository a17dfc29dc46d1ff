"""Memory of a GPU: the part that a trainer rank takes, and the parts that trainer and servers on a shared GPU take at a sync."""

from vime.cluster.placement import memory_share
from vime.config import AlgorithmName, Mode, RunConfig
from vime.errors import Problem
from vime.memory.processes import GIB, reserved_bytes, trainer_memory
from vime.memory.sync import sync_memory
from vime.preflight.rules import numbers


def trainer_fits(config: RunConfig) -> list[Problem]:
    """A trainer rank fits its GPU, beside the memory of contexts, NCCL and sleeping servers."""
    if config.mode is Mode.eval or not config.cluster.gpus_per_node or numbers.ranges(config):
        return []
    held, limit = trainer_memory(config), config.cluster.gpu_memory_gib * GIB
    needed, reserve = sum(held.values()), reserved_bytes(config)
    if needed + reserve <= limit:
        return []
    parts = ", ".join(f"{part} {size / GIB:.1f}" for part, size in held.items() if size)
    recompute = "" if config.trainer.recompute else "trainer.recompute=true, "
    remedy = (
        f"a trainer rank would need {needed / GIB:.1f} GiB ({parts}) and {reserve / GIB:.1f} GiB in reserve of a GPU of "
        f"{limit / GIB:g} GiB: use {recompute}larger parallel sizes, or a smaller trainer.max_tokens_per_micro_batch"
    )
    return [Problem(key="trainer.tensor_parallel_size", value=config.trainer.tensor_parallel_size, remedy=remedy)]


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
