"""Quantized weights: the numbers that trainer and servers compute with, and the tensors in which servers get them.

Integers are symmetric about 0 and rounded to the nearest, and the largest value that shares a scale becomes the largest integer.
In 8 bits each output of a linear layer has a scale, and each token of its input, which is quantized as well (W8A8). In 4 bits 32
inputs of an output share one, inputs stay as they are (W4A16), and servers get the values that the integers represent, because
vLLM 0.32.0 multiplies 4-bit integers on a CPU with AVX-512 alone. Embeddings, norms, biases, routers and the head stay as they
are.

Shape suffixes: O outputs, I inputs, N rows that have a scale of their own, K values that share it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LARGEST = 127
"""Largest integer of 8 bits."""
LARGEST_OF_4_BITS = 7
GROUP = 32
"""Inputs that share a scale in 4 bits: the smallest group that vLLM's kernels have."""
SCALE = "_scale"
"""The end of the name of the scales, behind that of their weight."""
_FORMAT = {"num_bits": 8, "type": "int", "symmetric": True}
INT8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_FORMAT, "strategy": "channel", "dynamic": False},
            "input_activations": {**_FORMAT, "strategy": "token", "dynamic": True},
        }
    },
}
"""`quantization_config` of a checkpoint with these tensors, in the format of compressed-tensors, which vLLM reads."""
_LINEAR = re.compile(r".*\.layers\.\d+\..*_proj\.weight")


def is_quantized(name: str) -> bool:
    """True for the weight of a linear layer of the decoder, by its Hugging Face name."""
    return _LINEAR.fullmatch(name) is not None


def largest(values_NK: "torch.Tensor") -> "torch.Tensor":
    """The largest magnitude of each row, [N, 1], float32."""
    return values_NK.abs().amax(-1, keepdim=True).float()


def scale_of(largest_N1: "torch.Tensor", most: int = LARGEST) -> "torch.Tensor":
    """The scale with which the largest magnitude becomes the largest integer; rows of zeros have one above 0 too."""
    import torch

    return (largest_N1 / most).clamp(min=torch.finfo(torch.float32).tiny)


def integers(values_NK: "torch.Tensor", scale_N1: "torch.Tensor", most: int = LARGEST) -> "torch.Tensor":
    """Values in units of their scale, rounded to the nearest integer, float32."""
    return (values_NK.float() / scale_N1).round_().clamp_(-most, most)


def four_bits(weight_OI: "torch.Tensor") -> "torch.Tensor":
    """The weights that 4-bit integers represent; scales have the weights' precision, as servers of such integers hold them."""
    groups_NK = weight_OI.detach().unflatten(1, (-1, GROUP))
    scale_N1 = scale_of(largest(groups_NK), LARGEST_OF_4_BITS).to(weight_OI.dtype).float()
    return (integers(groups_NK, scale_N1, LARGEST_OF_4_BITS) * scale_N1).to(weight_OI.dtype).flatten(1)


def quantized(tensors: "Iterable[tuple[str, torch.Tensor]]") -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of a model, those of its linear layers as integers [O, I] and behind them scales [O, 1]."""
    import torch

    for name, tensor in tensors:
        if not is_quantized(name):
            yield name, tensor
            continue
        weight_OI = tensor.detach()
        scale_O1 = scale_of(largest(weight_OI))
        yield name, integers(weight_OI, scale_O1).to(torch.int8)
        yield name + SCALE, scale_O1


def in_four_bits(tensors: "Iterable[tuple[str, torch.Tensor]]") -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of a model, those of its linear layers with the values of 4-bit integers."""
    for name, tensor in tensors:
        yield name, four_bits(tensor) if is_quantized(name) else tensor
