"""Inside a vLLM worker: some values of a payload's tensor, and how they are compared with those that a layer shows."""

from dataclasses import dataclass
from typing import Any

import torch

from vime.weights.shard import TensorShard

QUANTIZED_TOLERANCE = 0.13
"""Largest difference of a quantized layer, as a share of the largest value read; FP8 rounds to 3 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueSample:
    """Some values of one payload tensor. Example: `ValueSample(shard=…, indices=[3, 17], values=…)`, columns 3 and 17."""

    shard: TensorShard
    indices: torch.Tensor
    values: torch.Tensor


def difference(read: torch.Tensor, expected: torch.Tensor) -> str:
    """Describes the largest difference between the values that were read and those expected, for an error."""
    if bool(read.isnan().all()):
        return "nothing was loaded"
    unequal = (read.float() != expected.float()).float().mean()
    return f"{100 * float(unequal):.0f} % of the values that were looked at are other ones"


def is_exact(module: Any) -> bool:
    """Whether a layer's weights are what was loaded, and not rounded to fewer bits."""
    return type(module.quant_method).__name__ in (
        "UnquantizedLinearMethod",
        "UnquantizedEmbeddingMethod",
        "UnquantizedFusedMoEMethod",
    )
