"""Some values of a payload's tensor, and how they are compared with those that a layer shows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from vime.inside_vllm.shard import TensorShard

QUANTIZED_TOLERANCE = 0.13
"""Largest difference of a quantized layer, as a share of the largest value read; FP8 rounds to 3 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueSample:
    """Some values of one payload tensor. Example: `ValueSample(shard=…, indices=[3, 17], values=…)`, columns 3 and 17."""

    shard: TensorShard
    indices: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A comparison whose outcome has not yet been read from the device.

    Example: `Comparison(is_right=tensor(True, device="cuda:0"), fault=lambda: "lm_head.weight: nothing was loaded")`.
    """

    is_right: torch.Tensor
    fault: Callable[[], str]
    """An error line; called only where it is not right, because it asks the device."""


def faults(comparisons: Iterable[Comparison]) -> list[str]:
    """Error lines of those that are not right; waits for the device once, and again for each line."""
    made = list(comparisons)
    if not made:
        return []
    device = made[0].is_right.device
    outcomes = torch.stack([comparison.is_right.to(device) for comparison in made]).tolist()
    return [comparison.fault() for comparison, is_right in zip(made, outcomes) if not is_right]


def difference(read: torch.Tensor, expected: torch.Tensor) -> str:
    """Describes the largest difference between the values that were read and those expected, for an error."""
    if bool(read.isnan().all()):
        return "nothing was loaded"
    unequal = (read.float() != expected.float()).float().mean()
    return f"{100 * float(unequal):.0f} % of the values that were looked at are other ones"


def is_exact(module: Any) -> bool:
    """True if a layer holds the loaded weights exactly, without rounding to fewer bits."""
    return type(module.quant_method).__name__ in (
        "UnquantizedLinearMethod",
        "UnquantizedEmbeddingMethod",
        "UnquantizedFusedMoEMethod",
    )
