"""Weights as 8-bit integers: the tensors that a server with W8A8 products loads, and the description by which it knows them.

Each output of a linear layer has a scale of its own, so that its largest weight becomes 127 (symmetric, to the nearest). A server
quantizes the inputs of a product likewise, a scale for each token. Embeddings, norms, biases and the head stay as they are.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LARGEST = 127
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


def quantized(tensors: "Iterable[tuple[str, torch.Tensor]]") -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of a model, those of its linear layers as integers [outputs, inputs] and behind them scales [outputs, 1]."""
    import torch

    for name, tensor in tensors:
        if not _LINEAR.fullmatch(name):
            yield name, tensor
            continue
        weight_OI = tensor.detach().float()
        scale_O1 = (weight_OI.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        yield name, (weight_OI / scale_O1).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        yield name + SCALE, scale_O1
