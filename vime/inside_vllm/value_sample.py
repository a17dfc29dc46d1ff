"""Some values of a payload's tensor, and how they are compared with those that a layer shows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from vime.inside_vllm.tensor_shard import TensorShard

QUANTIZED_TOLERANCE = 0.13
"""Largest difference of a quantized layer, as a share of the largest value read; FP8 rounds to 3 bits."""
INTEGER_TOLERANCE = 0.005
"""The same where integers were sent: less than one of them, and more than the rounding of their product to bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueSample:
    """Some values of one payload tensor. Example: `ValueSample(shard=…, indices=[3, 17], values=…)`, columns 3 and 17."""

    shard: TensorShard
    indices: torch.Tensor
    values: torch.Tensor
    tolerance: float = QUANTIZED_TOLERANCE
    """Largest difference, as a share of the largest value read, if the layer does not hold the weights exactly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingCheck:
    """A check whose outcome has not yet been read from the device.

    Example: `PendingCheck(is_right=tensor(True, device="cuda:0"), fault=lambda: "lm_head.weight: nothing was loaded")`.
    """

    is_right: torch.Tensor
    fault: Callable[[], str]
    """Describes the error; called only for a check that failed, because it reads from the device."""


def faults(checks: Iterable[PendingCheck]) -> list[str]:
    """Errors of the failed checks; waits for the device once, and again for each error."""
    made = list(checks)
    if not made:
        return []
    device = made[0].is_right.device
    outcomes = torch.stack([check.is_right.to(device) for check in made]).tolist()
    return [check.fault() for check, is_right in zip(made, outcomes) if not is_right]


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
