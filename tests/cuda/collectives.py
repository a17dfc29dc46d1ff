"""`torch.distributed` of one rank whose others are imagined: nothing is sent, and NCCL's rules are checked."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.cuda.counts import COUNTS, refused, where

Observer = Callable[[str, list[torch.Tensor], Any], None]
OBSERVERS: list[Observer] = []
"""Called for every collective with its kind, its tensors and its group (None is the world)."""
METRICS = {"train/loss": 1.0, "train/num_tokens": 1.0, "train/policy_loss": 1.0}
"""Metrics of the imagined ranks."""
TENSORS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("tensor",),
    "broadcast": ("tensor",),
    "reduce": ("tensor",),
    "send": ("tensor",),
    "recv": ("tensor",),
    "isend": ("tensor",),
    "irecv": ("tensor",),
    "all_gather": ("tensor_list", "tensor"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "_all_gather_base": ("output_tensor", "input_tensor"),
    "reduce_scatter_tensor": ("output", "input"),
    "_reduce_scatter_base": ("output", "input"),
    "all_to_all_single": ("output", "input"),
}
"""The arguments of each collective that are tensors, in their order."""


class Work:
    """A collective that is done."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True


def install() -> None:
    """Replaces `torch.distributed`'s ways of talking in this process."""
    start, new_group = dist.init_process_group, dist.new_group

    def init_process_group(backend: str | None = None, *, world_size: int, rank: int, **_: Any) -> None:
        if backend != "nccl":
            refused(f"process groups on {backend}")
        start("fake", store=FakeStore(), rank=rank, world_size=world_size)  # type: ignore[no-untyped-call]

    dist.init_process_group = init_process_group  # type: ignore[assignment]
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")  # type: ignore[assignment]
    for kind, names in TENSORS.items():
        replacement = _collective(kind, names)
        setattr(dist, kind, replacement)
        setattr(c10d, kind, replacement)
    dist.batch_isend_irecv = _messages  # type: ignore[assignment]
    dist._coalescing_manager = c10d._coalescing_manager = _coalescing  # type: ignore[attr-defined]
    dist.barrier = lambda *_, **__: _count("barrier")  # type: ignore[assignment]
    dist.broadcast_object_list = lambda *_, **__: None  # type: ignore[assignment]
    dist.all_gather_object = _all_gather_object  # type: ignore[assignment]


def _collective(kind: str, names: tuple[str, ...]) -> Callable[..., Work]:
    def call(*args: Any, **kwargs: Any) -> Work:
        given = [*args[: len(names)], *(kwargs[name] for name in names[len(args) :])]
        tensors = [tensor for one in given for tensor in (one if isinstance(one, (list, tuple)) else [one])]
        _check(kind, tensors)
        for observer in OBSERVERS:
            observer(kind, tensors, kwargs.get("group"))
        return Work()

    return call


def _check(kind: str, tensors: list[torch.Tensor]) -> None:
    """NCCL takes contiguous tensors on the device."""
    _count(kind)
    for tensor in tensors:
        if tensor.device.type != "cuda":
            refused(f"{kind} of a tensor on {tensor.device}")
        if not tensor.is_contiguous():
            refused(f"{kind} of a tensor that is not contiguous: {tuple(tensor.shape)}, strides {tensor.stride()}")


def _count(kind: str) -> None:
    COUNTS.collectives[f"{kind} {where()}"] += 1


def _messages(operations: list[Any]) -> list[Work]:
    for operation in operations:
        _check("message", [operation.tensor])
        for observer in OBSERVERS:
            observer("message", [operation.tensor], operation.group)
    return [Work() for _ in operations]


@contextlib.contextmanager
def _coalescing(*_: Any, **__: Any) -> Iterator[Work]:
    yield Work()


def _all_gather_object(gathered: list[Any], own: Any, group: Any = None) -> None:
    """The others are like this rank; one that has no metrics takes those of others."""
    _count("all_gather_object")
    of_others = (METRICS, *own[1:]) if isinstance(own, tuple) and own[0] == {} else own
    for index in range(len(gathered)):
        gathered[index] = of_others
