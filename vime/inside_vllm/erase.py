"""Overwrites weights with NaN before others are loaded.

A weight that does not arrive is then NaN, instead of the old value, which may differ very little from the new one.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from vime.weights.quantize import LARGEST


def erase(model: Any) -> None:
    """Overwrites all weights, before vLLM begins to load others."""
    for parameter in model.parameters():
        _fill(parameter)
    for module in model.modules():
        if hasattr(module, "cpu_linear"):  # a packed copy, of which the parameter knows nothing
            module.cpu_linear = erased_product(module)
        kernel: Any = getattr(getattr(module, "scheme", None), "kernel", None)
        if hasattr(kernel, "linear_method"):  # of integers on a CPU, which has packed copies of weights and scales
            kernel.linear_method = _erased_kernel(module)


def _fill(parameter: torch.Tensor) -> None:
    """Overwrites with NaN, and integers with one that is never sent."""
    if parameter.is_floating_point():
        parameter.data.fill_(math.nan)
    elif parameter.dtype is torch.int8:
        parameter.data.fill_(-LARGEST - 1)


def _erased_kernel(module: Any) -> Callable[..., torch.Tensor]:
    """A product of NaN with a kernel's arguments, until the layer is packed again."""
    product = erased_product(module)

    def linear_method(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return product(x, layer.weight, bias)

    return linear_method


def erase_what_is_materialized() -> None:
    """Makes vLLM fill the layers that it allocates with NaN; the memory might still hold the weights of the last version."""
    from vllm.model_executor.model_loader.reload import meta

    if getattr(meta.materialize_meta_tensor, "erases", False):
        return
    materialize = meta.materialize_meta_tensor

    def materialize_erased(meta_tensor: torch.Tensor) -> torch.Tensor:
        tensor = materialize(meta_tensor)
        if isinstance(meta_tensor, torch.nn.Parameter):
            if getattr(tensor, "weight_loader_numel", tensor.numel()) < tensor.numel():
                tensor.data.zero_()  # padding is never loaded, and must multiply to nothing
            else:
                _fill(tensor)
        return tensor

    materialize_erased.erases = True
    meta.materialize_meta_tensor = materialize_erased


def erased_product(module: Any) -> Callable[..., torch.Tensor]:
    """A product in place of a layer's packed one: its output is NaN until the layer is packed again."""
    if isinstance(sizes := getattr(module, "output_partition_sizes", None), list):
        size = sum(sizes)
    else:
        size = module.num_embeddings_per_partition

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_full((*x.shape[:-1], size), math.nan)

    vars(product)["is_erased"] = True
    return product
