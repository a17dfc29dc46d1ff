"""Tokens and sequences that the KV caches of the trained model's servers hold, and the number of rollouts at a time."""

import math

from vime.cluster.placement import ServerGroup, server_groups
from vime.config import KVCacheDtype, RunConfig, ServedModelConfig, ServerRole
from vime.memory.processes import server_memory
from vime.model.size import BYTES, kv_bytes_per_token, state_bytes

LEAST_ROLLOUTS = 256
"""Rollouts at a time if the KV cache holds fewer or its size is unknown; rollouts that wait for a tool take no place in it."""


def trained_groups(config: RunConfig) -> list[ServerGroup]:
    """Groups of servers of the trained model that this run starts."""
    trained = {name: model for name, model in config.serving.models.items() if model.trained}
    return [group for name, model in trained.items() for group in server_groups(name, model)]


def kv_cache_tokens(config: RunConfig, server: ServedModelConfig) -> float:
    """Tokens whose keys and values fit into one server of the trained model, on all its GPUs together.

    Linear attention has the states of `max_num_seqs` sequences there besides.
    """
    held = server_memory(config, server)["KV cache"] * server.tensor_parallel_size
    held = max(0.0, held - server.max_num_seqs * state_bytes(config.model, config.trainer.precision))
    halved = 1 if server.kv_cache_dtype is KVCacheDtype.auto else BYTES[config.trainer.precision]
    return held * halved / kv_bytes_per_token(config.model, config.trainer.precision)


def num_concurrent_rollouts(config: RunConfig) -> int:
    """Rollouts that all workers together run at a time: `max_concurrent_rollouts` of each, or as many as fit the KV caches.

    A sequence grows to `max_model_len` at most and holds half of that on average while it does; a server takes no more than
    `max_num_seqs`. With prefill and decode apart those that decode count.
    """
    rollout = config.rollout
    if rollout.max_concurrent_rollouts is not None:
        return rollout.num_workers * rollout.max_concurrent_rollouts
    if not config.cluster.gpus_per_node:
        return rollout.num_workers * LEAST_ROLLOUTS
    total = 0
    for group in trained_groups(config):
        if group.role is not ServerRole.prefill:
            server = group.settings
            held = int(2 * kv_cache_tokens(config, server) / server.max_model_len)
            total += server.num_replicas * min(server.max_num_seqs, held)
    return max(total, rollout.num_workers * LEAST_ROLLOUTS)


def rollouts_of_a_worker(config: RunConfig) -> int:
    """The share of one worker in `num_concurrent_rollouts`."""
    return math.ceil(num_concurrent_rollouts(config) / config.rollout.num_workers)
