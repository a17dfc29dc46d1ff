"""Lets Megatron-core run without CUDA, by replacing the parts of `torch.cuda` that it uses; no other module does so.

Megatron asks `torch.cuda` for its device, allocates with `device="cuda"`, and its optimizers assert that parameters are of a
`torch.cuda` type. `install` maps all of these to the CPU. Process groups are gloo's.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _device

logger = logging.getLogger(__name__)

_installed: list[bool] = []


class _CpuStream:
    """Replaces a CUDA stream and its events; a class, because libraries derive from and test against `torch.cuda.Stream`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _: "_CpuStream") -> None:
        """Does nothing: operations on the CPU are done when they return."""

    def record_event(self, *_: Any) -> "_CpuStream":
        """An event that has happened already."""
        return self

    def synchronize(self) -> None:
        """Does nothing, because nothing is pending."""


FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "eye")
FACTORIES += ("zeros_like", "ones_like", "empty_like", "full_like")
METHODS = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")


def _map_devices() -> None:
    """`device="cuda"` means the CPU, `Tensor.cuda()` is the identity, and types have the names that the optimizers expect.

    A `TorchFunctionMode` would be shorter, but it makes each of a step's thousands of calls of PyTorch slower.
    """
    _device._device_constructors()  # kept by PyTorch from its first use on: what `with torch.device(...)` is to find are these
    for owner, names in ((torch, FACTORIES), (torch.Tensor, METHODS)):
        for name in names:
            setattr(owner, name, _on_cpu(getattr(owner, name)))
    move, name_of_type = torch.Tensor.to, torch.Tensor.type

    @functools.wraps(move)
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return move(tensor, *args, **kwargs)

    @functools.wraps(name_of_type)
    def type_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = name_of_type(tensor, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    torch.Tensor.to, torch.Tensor.type = to, type_  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[assignment,method-assign]


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, which makes them on the CPU if it is asked for a CUDA device."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    return make


def install() -> None:
    """Makes Megatron-core run on the CPU for the rest of this process. Safe to call twice."""
    if _installed:
        return
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_, **__: None  # type: ignore[assignment]
    torch.cuda.empty_cache = lambda: None
    torch.cuda.Stream = _CpuStream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_, **__: _CpuStream()  # type: ignore[assignment,return-value]
    torch.cuda.default_stream = lambda *_, **__: _CpuStream()  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda *_, **__: nullcontext()  # type: ignore[assignment,return-value]
    _map_devices()
    _installed.append(True)
    _use_cpu_generator()
    _give_split_sizes_as_numbers()
    # Megatron's small fusions: compiling them for the CPU costs more than it gains. The compiler reads this when it is imported.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    logger.info("no CUDA device: Megatron-core runs on the CPU")


def _use_cpu_generator() -> None:
    """Recomputation and Megatron's tracker of random states seed, save and restore the device's; here that is the CPU's."""
    with _nothing_compiled():
        from megatron.core.tensor_parallel import random as megatron_random

    torch.cuda.manual_seed = torch.default_generator.manual_seed  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[assignment]
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[assignment]
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)  # type: ignore[assignment]


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Makes `torch.compile` return its argument unchanged within the block.

    Megatron decorates its fused functions with it as they are imported. The compiler takes two seconds of a processor to import,
    and none of these functions is compiled on a CPU.
    """
    compile_function = torch.compile
    torch.compile = lambda function=None, **_: function if function is not None else lambda decorated: decorated  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_function


def _give_split_sizes_as_numbers() -> None:
    """Experts' all-to-all takes sizes as numbers; Megatron converts them on their way from the device to the CPU only."""
    from megatron.core.transformer.moe import token_dispatcher

    def convert(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = convert  # type: ignore[assignment]


def _is_cuda(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
