"""Comparison of our functions with float64: values and gradients."""

from collections.abc import Callable
from typing import Any

import torch

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 0.01}
"""Tolerances as shares of a whole tensor's norm."""


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normally distributed values, the same in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_same(ours: Callable[..., Any], expected: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Values and gradients, towards random directions, of one function in the inputs' dtype and the other in float64."""
    tolerance = TOLERANCES[inputs[0].dtype]
    narrow, wide = [x.clone().requires_grad_() for x in inputs], [x.double().requires_grad_() for x in inputs]
    found, known = ours(*narrow), expected(*wide)
    found, known = (x if isinstance(x, tuple) else (x,) for x in (found, known))
    directions = [torch.randn(x.shape, generator=torch.Generator().manual_seed(7)) for x in known]
    sum((x.float() * towards).sum() for x, towards in zip(found, directions)).backward()
    sum((x * towards.double()).sum() for x, towards in zip(known, directions)).backward()
    gradients = [(x.grad, y.grad) for x, y in zip(narrow, wide)]
    for one, other in (*zip(found, known), *gradients):
        assert one is not None and other is not None and one.shape == other.shape
        difference, size = (one.double() - other).norm(), other.norm()
        assert difference <= tolerance * size + 0.01 * tolerance, f"{difference:.3g} of {size:.3g}"
