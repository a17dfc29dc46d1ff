"""Process groups of a trainer rank: torch.distributed on gloo or NCCL, and Megatron's groups for every kind of parallelism."""

import random
import socket

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import HashStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]  (documented)

from vime.cluster.layout import world_size
from vime.config import TrainerConfig
from vime.machine import num_cores


def device() -> torch.device:
    """The device of this rank."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def open_store(host: str) -> TCPStore:
    """The store at which the ranks of a world meet, at a port (`store.port`) of `host` that this process holds from now on."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def store_at(address: str) -> TCPStore:
    """The store that another rank has opened at `address` (host:port)."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port))


def num_threads(config: TrainerConfig, num_neighbours: int) -> int:
    """CPU threads of one of `num_neighbours` ranks on this machine: as configured, or an equal share of the cores."""
    return config.num_threads or max(num_cores() // num_neighbours, 1)


def initialize(
    config: TrainerConfig, *, rank: int, seed: int, store: Store | None = None, num_neighbours: int | None = None
) -> None:
    """Joins the world of ranks that meet at `store` (None: a single rank) and seeds this one. Ranks on CUDA see one device each.

    `num_neighbours` counts the ranks on this machine, this one too; None if all are here. Their threads are set in any case:
    Ray gives its actors one each, which packing, copies and checkpoints beside a GPU would wait for.
    """
    size = world_size(config)
    torch.set_num_threads(num_threads(config, num_neighbours or size))
    if not torch.cuda.is_available():
        from vime.trainer import cpu

        cpu.begin(config.cpu_products)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store or HashStore(), world_size=size, rank=rank)
    rounds = config.virtual_pipeline_parallel_size
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=rounds if rounds > 1 else None,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_parallel_size,
        expert_tensor_parallel_size=1,
        create_gloo_process_groups=backend == "gloo",  # beside NCCL nothing would use them, and they want host names that resolve
    )
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def shutdown() -> None:
    """Leaves the world; nothing happens if this process is in none."""
    if not torch.cuda.is_available():
        from vime.trainer import cpu

        cpu.end()
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
