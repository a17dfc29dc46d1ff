"""The memory that the tokens of a batch take, from the configuration alone: in Ray's object store and in the driver.

An accepted sample takes at most 13 bytes per token (`vime.types.COLUMNS`), 8 for each of the sampler's likeliest tokens at its
place (`rollout.num_logprobs`), and one or two for each expert of a layer (`trainer.routing_replay=rollout`). The driver keeps the
finished groups of all batches that may wait for the trainer. Ray's store holds a batch while its ranks train on it, and groups on
their way to the driver.
"""

import numpy as np

from vime.config import AlgorithmName, RoutingReplay, RunConfig, policies
from vime.types.routed_experts import id_type

BYTES_PER_TOKEN, BYTES_PER_LIKELIEST = 13, 8
STORE_ROOM_BYTES = 512 * 2**20
"""Room in Ray's object store besides a batch, for groups on their way, the probe's tokens and Ray itself."""


def batch_tokens(config: RunConfig) -> int:
    """Tokens of the largest batch, in which every expected call of every rollout is a sample as long as the context.

    Where the method does not tell how many calls a rollout makes, one is assumed.
    """
    if config.algorithm.name is AlgorithmName.sft:
        return config.trainer.sft_tokens_per_step
    rollouts = config.rollout.num_prompts * config.rollout.num_samples_per_prompt
    longest = max((model.max_model_len for model in config.serving.models.values() if model.trained), default=0)
    return rollouts * (config.method.expected_calls(config) or 1) * longest


def batch_bytes(config: RunConfig) -> int:
    """Bytes of the largest batch."""
    likeliest = 0 if config.algorithm.name is AlgorithmName.sft else config.rollout.num_logprobs
    return batch_tokens(config) * (BYTES_PER_TOKEN + BYTES_PER_LIKELIEST * likeliest + experts_bytes(config))


def experts_bytes(config: RunConfig) -> int:
    """Bytes of the experts of one token that servers report for the trainer; 0 if they do not."""
    model = config.model
    if config.trainer.routing_replay is not RoutingReplay.rollout or not model.num_experts:
        return 0
    return model.num_layers * model.num_experts_per_token * np.dtype(id_type(model.num_experts)).itemsize


def object_store_bytes(config: RunConfig) -> int:
    """The size of Ray's object store, in bytes; it is shared memory, which is taken only when it is used."""
    return sum(batch_bytes(policy) for policy in policies(config).values()) + STORE_ROOM_BYTES


def driver_bytes(config: RunConfig) -> int:
    """Bytes of finished groups in the driver: the batch in training, and the batches that may wait by `max_staleness`."""
    return batch_bytes(config) * (config.rollout.max_staleness + 1)
