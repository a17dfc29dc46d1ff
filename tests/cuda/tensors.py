"""Tensors on the device that is not there: PyTorch's fake tensors, which have shape, dtype and device but no content.

What is made or moved to `cuda` is fake, the CPU's side stays real. A value that the host asks for is 1 (`True`), and is counted
as a synchronization; so is every output whose size depends on values.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._subclasses.fake_impls as fake_impls
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.bias import CausalBias
from torch.optim.optimizer import _foreach_supported_types
from torch.utils import _device, _pytree

from tests.cuda.counts import COUNTS, refused, waits, where

DEVICE = "cuda:0"
MODE = FakeTensorMode(allow_non_fake_inputs=True)
"""Active while the device computes; autograd makes tensors of its own, which then are fake."""
outside = unset_fake_temporarily
"""A context in which the host computes for real again."""
FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "eye", "randint", "empty_strided")
FACTORIES += ("as_tensor", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
METHODS = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
FAKE_ATTRIBUTES = ("fake_device", "fake_mode", "constant", "real_tensor", "_nonzero_memo", "_item_memo")
Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
OBSERVERS: list[Observer] = []
"""Called after every operation that dispatches to fake tensors: the operator of `torch.ops.aten`, arguments, options, result."""


def install() -> None:
    """Makes `cuda` mean the fake device in this process."""
    _device._device_constructors()  # kept by PyTorch from its first use on
    for owner, names in ((torch, FACTORIES), (torch.Tensor, METHODS)):
        for name in names:
            setattr(owner, name, _making(getattr(owner, name)))
    _install_moves()
    _install_values()
    _install_dispatch()
    _install_storages()
    torch.nn.Module._apply = _apply  # type: ignore[assignment,method-assign]
    F.scaled_dot_product_attention = functools.partial(_attention, F.scaled_dot_product_attention)  # type: ignore[assignment]
    _foreach_supported_types.append(FakeTensor)  # or Adam would take another way than on a device


def is_cuda(device: Any) -> bool:
    """True for what names a CUDA device: `"cuda"`, a `torch.device`, or a number."""
    if isinstance(device, (str, torch.device)):
        return str(device).startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, which makes fake ones for a CUDA device, and for page-locked memory: nothing is taken."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if kwargs.pop("pin_memory", False):
            with MODE:
                found = function(*args, **kwargs)
            COUNTS.pinned.append(found.untyped_storage().nbytes())
            return found
        args = tuple(_read(arg) if isinstance(arg, list) else arg for arg in args)
        if device is not None and is_cuda(device):
            with MODE:
                return function(*args, **{**kwargs, "device": DEVICE})
        return function(*args, **kwargs)

    return make


def _read(values: Any) -> Any:
    """A list that a tensor is made of, with the values of tensors in it, which PyTorch reads one by one."""
    if isinstance(values, list):
        return [_read(value) for value in values]
    return values.item() if isinstance(values, FakeTensor) else values


def _install_moves() -> None:
    move = torch.Tensor.to

    @functools.wraps(move)
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = kwargs.get("device", args[0] if args else None)
        target = target.device if isinstance(target, torch.Tensor) else target
        if not is_cuda(target) or tensor.device.type != "cpu":
            return move(tensor, *args, **kwargs)
        COUNTS.copies_to_device[where()] += 1
        options = {name: value for name, value in kwargs.items() if name != "device"}
        others = args if "device" in kwargs else args[1:]
        with MODE:
            fake = tensor if isinstance(tensor, FakeTensor) else MODE.from_tensor(tensor, static_shapes=True)
            return move(fake, DEVICE, *others, **options)

    torch.Tensor.to = to  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor.to(DEVICE)  # type: ignore[assignment,method-assign]
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[assignment,method-assign]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[assignment,method-assign]


def _install_values() -> None:
    """Operations that need a value of the device."""
    operators = fake_impls.op_implementations_dict
    aten = torch.ops.aten
    operators[aten._local_scalar_dense.default] = _value_of
    operators[aten.nonzero.default] = _all_places
    operators[aten.masked_select.default] = _all_values
    lists, arrays = torch.Tensor.tolist, torch.Tensor.numpy

    def tolist(tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, FakeTensor):
            return lists(tensor)
        _wait_for(tensor)
        return np.full(tuple(tensor.shape), _value(tensor)).tolist()

    def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> np.ndarray:
        if not isinstance(tensor, FakeTensor):
            return arrays(tensor, *args, **kwargs)
        if tensor.device.type == "cuda":
            refused("numpy() of a tensor on the device")
        return np.ones(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    torch.Tensor.tolist = FakeTensor.tolist = tolist  # type: ignore[assignment,method-assign]
    torch.Tensor.numpy = numpy  # type: ignore[assignment,method-assign]


def _value(tensor: torch.Tensor) -> Any:
    if tensor.dtype is torch.bool:
        return True
    return 1.0 if tensor.dtype.is_floating_point else 1


def _wait_for(tensor: torch.Tensor, what: str = "") -> None:
    """A value of a tensor is read; one that was copied to the host before was waited for then."""
    if tensor.device.type == "cuda":
        waits(what)


def _value_of(_: FakeTensorMode, __: Any, tensor: torch.Tensor) -> Any:
    _wait_for(tensor)
    return _value(tensor)


def _all_places(mode: FakeTensorMode, _: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The places of all values: a mask is taken to be true everywhere."""
    _wait_for(tensor, "places of a mask")
    with mode:
        return torch.empty(tensor.numel(), max(tensor.dim(), 1), dtype=torch.int64, device=tensor.device)


SHARE_OF_A_MASK = [1, 1]
"""Chosen values of a mask in `masked_select`, and how many there are: with experts, those per token of all experts."""


def _all_values(mode: FakeTensorMode, _: Any, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    _wait_for(mask, "masked_select")
    chosen, of = SHARE_OF_A_MASK
    with mode:
        return torch.empty(mask.numel() * chosen // of, dtype=tensor.dtype, device=tensor.device)


def _install_dispatch() -> None:
    dispatch = FakeTensorMode.dispatch
    aten = torch.ops.aten
    moves, fills = (aten._to_copy.default,), (aten.copy_.default,)

    def observed(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.addmm.dtype_out:  # cuBLAS adds to the sum in place; PyTorch's fake would take three more of its size
            result = (kwargs or {})["out"]
        else:
            result = dispatch(mode, func, types, args, kwargs or {})
        if func in moves:
            _copied(args[0], result, kwargs or {})
        elif func in fills:
            _copied(args[1], args[0], {"non_blocking": args[2] if len(args) > 2 else (kwargs or {}).get("non_blocking", False)})
        for leaf in _pytree.tree_leaves(result):
            if isinstance(leaf, FakeTensor) and leaf.device.type == "cuda":
                COUNTS.memory.note(leaf.untyped_storage())
        for observer in OBSERVERS:
            observer(func, args, kwargs or {}, result)
        return result

    FakeTensorMode.dispatch = observed  # type: ignore[method-assign]
    FakeTensorMode.avoid_device_init = property(lambda _: True)  # type: ignore[assignment]


def _copied(source: Any, target: Any, options: dict[str, Any]) -> None:
    """A copy to the host waits for the device; one to the device is counted."""
    if not (isinstance(source, torch.Tensor) and isinstance(target, torch.Tensor)):
        return
    kinds = source.device.type, target.device.type
    if kinds == ("cuda", "cpu") and not options.get("non_blocking"):
        waits("copy to the host")
    elif kinds == ("cpu", "cuda") and source.dim():
        COUNTS.copies_to_device[where()] += 1
        if not options.get("non_blocking"):
            COUNTS.blocking_copies[where()] += 1


def _install_storages() -> None:
    pointer, resize = torch.UntypedStorage.data_ptr, torch.UntypedStorage.resize_

    def data_ptr(storage: torch.UntypedStorage) -> int:
        return pointer(storage) if storage.device.type == "cpu" else storage._cdata

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        found = resize(storage, size)
        COUNTS.memory.resized(storage)
        return found

    torch.UntypedStorage.data_ptr = data_ptr  # type: ignore[method-assign]
    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]


def _apply(module: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """`Module._apply` where a parameter that changes its kind becomes another, with the attributes of the first."""
    for child in module.children() if recurse else ():
        child._apply(function)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            moved = function(parameter)
            if (moved.device, moved.dtype) != (parameter.device, parameter.dtype):
                replaced = torch.nn.Parameter(moved, parameter.requires_grad)
                for key, value in parameter.__dict__.items():
                    if key not in FAKE_ATTRIBUTES:
                        setattr(replaced, key, value)
                module._parameters[name] = replaced
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return module


def _attention(
    original: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel that a device takes: flash attention for 16 bits, the memory-efficient one for float32 and under a mask.

    A build of PyTorch without CUDA would take single operations, which keep all scores.
    """
    if query.device.type != "cuda":
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if isinstance(attn_mask, CausalBias):  # of other keys than queries: flash attention aligns the mask at the last key
        attn_mask, is_causal = None, True
    if not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
        refused("flash attention of heads whose channels are not side by side")
    aten = torch.ops.aten
    if query.dtype is torch.float32 or attn_mask is not None:
        if key.shape[1] != query.shape[1]:
            refused("memory-efficient attention of grouped keys")
        bias = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, is_causal, scale=scale)[0]
    if enable_gqa and key.shape[1] != query.shape[1]:  # the kernel reads grouped keys in place; its fake does not know them
        count = query.shape[1] // key.shape[1]
        key, value = (x.unsqueeze(2).expand(-1, -1, count, -1, -1).flatten(1, 2) for x in (key, value))
    return aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, False, scale=scale)[0]
