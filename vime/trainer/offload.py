"""The trainer's memory on a GPU that it shares with a server: freed while the server works, and filled again to train.

Tensors stay what they are; their storage is emptied and its content kept in host memory, or dropped for gradients. So every
view of a buffer, Megatron's and the optimizer's, is whole again after `load`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import MegatronOptimizer


class HostMemory:
    """Contents of device storages, kept in host memory while the storages are empty."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.UntypedStorage, torch.Tensor | None, int]] = []

    def take(self, tensors: Iterable[torch.Tensor], *, keep_content: bool = True) -> None:
        """Empties the storages of these tensors; those that are empty already are left alone."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.size() == 0:
                continue
            content = _copy_of(storage) if keep_content else None
            self._kept.append((storage, content, storage.size()))
            storage.resize_(0)

    def give_back(self) -> None:
        """Fills the storages again; dropped content is zero."""
        for storage, content, size in self._kept:
            storage.resize_(size)
            whole = _bytes_of(storage)
            whole.zero_() if content is None else whole.copy_(content, non_blocking=True)
        self._kept = []


class Offload:
    """Tracks which state of one rank is in host memory: none, optimizer and gradients, or the weights too."""

    def __init__(self, wrapped: list[DistributedDataParallel], optimizer: MegatronOptimizer) -> None:
        self._wrapped, self._optimizer = wrapped, optimizer
        self._optimizer_memory, self._weight_memory = HostMemory(), HostMemory()

    @torch.no_grad()
    def store(self, *, weights: bool) -> None:
        """Empties gradients and the optimizer's state, and with `weights` the model's parameters and buffers."""
        own = {parameter.untyped_storage().data_ptr() for parameter in self._weights()}
        buffers: Any = [b for part in self._wrapped for b in (*part.buffers, *part.expert_parallel_buffers)]  # type: ignore[misc]
        self._optimizer_memory.take((buffer.grad_data for buffer in buffers), keep_content=False)
        state = [tensor for tensor in self._state() if tensor.untyped_storage().data_ptr() not in own]
        self._optimizer_memory.take(state)
        if weights:
            self._weight_memory.take(self._weights())
        _release()

    @torch.no_grad()
    def load(self) -> None:
        """Everything is on the device again."""
        self._weight_memory.give_back()
        self._optimizer_memory.give_back()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _weights(self) -> list[torch.Tensor]:
        return [tensor for part in self._wrapped for tensor in (*part.module.parameters(), *part.module.buffers())]

    def _state(self) -> list[torch.Tensor]:
        """Master weights, moments and steps."""
        chain = getattr(self._optimizer, "chained_optimizers", [self._optimizer])
        found = []
        for inner in (link.optimizer for link in chain if link.optimizer is not None):
            found += [parameter for group in inner.param_groups for parameter in group["params"]]
            found += [value for state in inner.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        return found


def _copy_of(storage: torch.UntypedStorage) -> torch.Tensor:
    whole = _bytes_of(storage)
    kept = torch.empty(storage.size(), dtype=torch.uint8, pin_memory=whole.is_cuda)
    return kept.copy_(whole)


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
