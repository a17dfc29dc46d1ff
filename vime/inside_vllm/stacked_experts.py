"""Experts that a checkpoint has in one tensor, and the sinks of attention, as gpt-oss has them.

vLLM's loader writes these straight into its parameters, where an update that goes layer by layer does not see them. So it gets a
stacked tensor expert by expert, which it knows from checkpoints that are read as a stream, and sinks go to the loader of their
parameter.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

STACKED = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<part>gate_up_proj|down_proj)(?P<bias>_bias)?")
SINKS = ".self_attn.sinks"
FUSED = {"gate_up_proj": "w13", "down_proj": "w2"}
"""vLLM's names of the two matrices of an expert."""


def loadable(model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in the form in which vLLM's loader can take an update; those of other models are as they were."""
    for name, tensor in tensors:
        if stacked := STACKED.fullmatch(name):
            kind = "bias" if stacked["bias"] else "weight"
            for number, of_one in enumerate(tensor):
                yield f"{stacked['experts']}.{number}.{FUSED[stacked['part']]}_{kind}", of_one
        elif name.endswith(SINKS):
            _load_sinks(model.get_submodule(name.removesuffix(SINKS)).attn.sinks, tensor)
        else:
            yield name, tensor


def of_single_experts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The matrices and biases of each expert in a stacked tensor, outputs before inputs, by the names of other models."""
    stacked = STACKED.fullmatch(name)
    if stacked is None:
        yield name, tensor
        return
    kind = "bias" if stacked["bias"] else "weight"
    for number, of_one in enumerate(tensor):
        whole, beginning = of_one.t(), f"{stacked['experts']}.{number}"
        parts = {"down_proj": whole} if stacked["part"] == "down_proj" else {"gate_proj": whole[0::2], "up_proj": whole[1::2]}
        for part, values in parts.items():
            yield f"{beginning}.{part}.{kind}", values


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated product of vLLM's activation `swigluoai`, whose numbers are fixed."""
    gate, up = gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def _load_sinks(parameter: Any, sinks: torch.Tensor) -> None:
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    size = parameter.shape[0]
    own = sinks.narrow(0, get_tensor_model_parallel_rank() * size, size)
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, own)
