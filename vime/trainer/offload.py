"""The trainer's memory on a GPU that it shares with a server: freed while the server works, and filled again to train.

Tensors stay the same objects; their storage is emptied and its content kept in host memory, or dropped for gradients. So every
view of a buffer, Megatron's and the optimizer's, is whole again after `load`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import MegatronOptimizer


class HostMemory:
    """Contents of device storages, kept in host memory while the storages are empty.

    They lie side by side in one page-locked block, which stays for the next time: to lock pages takes longer than to fill them,
    and PyTorch rounds each small block up to a power of two (`vime.trainer.group.PINNING`).
    """

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.UntypedStorage, torch.Tensor | None]] = []
        self._blocks: list[torch.Tensor] = []
        self._num_used = 0

    def take(self, tensors: Iterable[torch.Tensor], *, keep_content: bool = True) -> None:
        """Empties the storages of these tensors; those that are empty already are left alone."""
        full = [(tensor, tensor.untyped_storage()) for tensor in tensors]
        found = {storage.data_ptr(): (_bytes_of(tensor, storage), storage) for tensor, storage in full if storage.size()}
        sizes = [whole.numel() for whole, _ in found.values()]
        places = self._block(found, sum(sizes)).split(sizes) if keep_content and found else [None] * len(sizes)
        for (whole, storage), place in zip(found.values(), places, strict=True):
            self._kept.append((whole, storage, place if place is None else place.copy_(whole, non_blocking=True)))
        if keep_content and found and torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies are complete before the storages are emptied
        for _, storage in found.values():
            storage.resize_(0)

    def give_back(self) -> None:
        """Fills the storages again; dropped content is zero."""
        for whole, storage, content in self._kept:
            storage.resize_(whole.numel())
            whole.zero_() if content is None else whole.copy_(content, non_blocking=True)
        self._kept, self._num_used = [], 0

    def _block(self, found: dict[int, tuple[torch.Tensor, torch.UntypedStorage]], size: int) -> torch.Tensor:
        """Page-locked memory of `size` bytes that holds no content; the memory of last time is reused if it is large enough."""
        if self._num_used == len(self._blocks):
            self._blocks.append(torch.empty(0, dtype=torch.uint8))
        if self._blocks[self._num_used].numel() < size:
            on_cuda = any(whole.is_cuda for whole, _ in found.values())
            self._blocks[self._num_used] = torch.empty(size, dtype=torch.uint8, pin_memory=on_cuda)
        self._num_used += 1
        return self._blocks[self._num_used - 1][:size]


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


def _bytes_of(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    """All bytes of the storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
