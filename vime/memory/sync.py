"""Memory at a sync on GPUs that trainer and servers share, in bytes, from the configuration alone.

There are two moments at which both hold memory. `loading`: the trainer's weights, the buffers of their export, and the weights of
the trained model's servers. `probing`: the trainer's weights, with which the servers' logprobs are compared, and all servers with
their KV caches. Other memory of processes (a CUDA context, NCCL's buffers, captured graphs) is in reserve; for servers that are
awake it is part of what they may take.
"""

from collections import defaultdict

from vime.cluster.layout import world_size
from vime.cluster.placement import sends_adapters, server_groups, server_places, takes_turns, trainer_places, transport
from vime.config import RunConfig, WeightTransfer
from vime.memory.processes import TRAINER_RESERVE, reserved_bytes, server_memory, trainer_memory
from vime.model.size import BYTES, num_trained_parameters

PACKED_BYTES = 2**30
"""Size of the buffer into which vLLM packs weights for `ipc`; a larger tensor makes it larger."""

GPU = tuple[int, int]
"""Node and number of the GPU on it."""


def sync_memory(config: RunConfig) -> dict[str, dict[str, float]]:
    """Bytes on the fullest of the shared GPUs by moment and by purpose; empty if trainer and servers share no GPU."""
    if not takes_turns(config):
        return {}
    loaded, whole = _servers_by_gpu(config)
    shared = [(place.node, gpu) for place in trainer_places(config, world_size(config.trainer)) for gpu in place.gpus]
    weights = {"trainer's weights": trainer_memory(config)["weights"]}
    return {
        "loading": {
            **weights,
            "export": _export_bytes(config),
            "servers' weights": max(loaded[gpu] for gpu in shared),
            "reserve": reserved_bytes(config),
        },
        "probing": {**weights, "servers": max(whole[gpu] for gpu in shared), "reserve": TRAINER_RESERVE},
    }


def _servers_by_gpu(config: RunConfig) -> tuple[dict[GPU, float], dict[GPU, float]]:
    """Bytes on each GPU: for the weights of the trained model's servers, and for everything that servers may take."""
    loaded: defaultdict[GPU, float] = defaultdict(float)
    whole: defaultdict[GPU, float] = defaultdict(float)
    for name, places in server_places(config).items():
        groups = server_groups(name, config.serving.models[name])
        servers = [group.settings for group in groups for _ in range(group.settings.num_replicas)]
        for server, place in zip(servers, places, strict=True):
            memory = server_memory(config, server)
            for gpu in place.gpus:
                loaded[place.node, gpu] += memory["weights"] if server.trained else 0.0
                whole[place.node, gpu] += sum(memory.values())
    return loaded, whole


def _export_bytes(config: RunConfig) -> float:
    """Bytes that an export needs: the largest tensor twice (its parts and the whole), and with `ipc` a full buffer twice.

    Adapters that are sent by themselves are counted whole.
    """
    model = config.model
    if sends_adapters(config):
        return 2.0 * num_trained_parameters(model, config.trainer) * BYTES[config.trainer.precision]
    embedding, network = model.vocab_size * model.hidden_size, model.intermediate_size * model.hidden_size
    largest = BYTES[config.trainer.precision] * max(embedding, network)
    packed = max(PACKED_BYTES, largest) if transport(config) is WeightTransfer.ipc else 0
    return 2.0 * largest + 2.0 * packed
