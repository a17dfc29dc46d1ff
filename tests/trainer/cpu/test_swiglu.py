"""SwiGLU without our kernel is Megatron's unfused version to the last bit, both ways, in whatever parts it is computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vime.trainer.cpu import rows, swiglu

SHAPES = [(6, 8), (5, 1, 6), (0, 4), (7, 2, 40)]


def single_operations(x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    gate, linear = x.chunk(2, dim=-1)
    product = F.silu(gate) * linear
    return product if weights is None else (product * weights).to(x.dtype)


def in_parts(x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return swiglu.swiglu(x, None) if weights is None else swiglu.weighted_swiglu(x, None, weights)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("part", [1, 10, swiglu.PART])
def test_outputs_and_gradients_are_those_of_single_operations(
    shape: tuple[int, ...], dtype: torch.dtype, is_weighted: bool, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swiglu, "PART", part)
    monkeypatch.setattr(rows, "library", lambda _: None)
    generator = torch.Generator().manual_seed(shape[0])
    drawn = torch.randn(shape, generator=generator).to(dtype), torch.rand((*shape[:-1], 1), generator=generator)
    towards = torch.randn((*shape[:-1], shape[-1] // 2), generator=generator).to(dtype)

    def found(function: Callable[..., torch.Tensor]) -> list[Any]:
        x, weights = (value.clone().requires_grad_() for value in drawn)
        result = function(x, weights if is_weighted else None)
        result.backward(towards)
        return [result, x.grad, *([weights.grad] if is_weighted else [])]

    for ours, theirs in zip(found(in_parts), found(single_operations)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
