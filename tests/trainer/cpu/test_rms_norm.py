"""RMSNorm and its gradients are float64's to rounding."""

from typing import Any

import pytest
import torch

from vime.trainer.cpu import rms_norm

SHAPES = [(5, 8), (1, 3, 4), (37, 2, 16), (0, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_outputs_and_gradients_are_those_of_float64(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float):
    generator = torch.Generator().manual_seed(len(shape))
    drawn = torch.randn(shape, generator=generator).to(dtype), (1 + torch.rand(shape[-1], generator=generator)).to(dtype)
    towards = torch.randn(shape, generator=generator)
    x, weight = (value.clone().requires_grad_() for value in drawn)
    wide_x, wide_weight = (value.double().requires_grad_() for value in drawn)
    found: Any = rms_norm._CpuRMSNorm.apply(x, weight, 1e-6)
    expected = torch.nn.functional.rms_norm(wide_x, (shape[-1],), wide_weight, eps=1e-6)
    (found.float() * towards).sum().backward()
    (expected * towards.double()).sum().backward()
    for ours, theirs in ((found, expected), (x.grad, wide_x.grad), (weight.grad, wide_weight.grad)):
        assert ours is not None and theirs is not None and ours.dtype is dtype and ours.shape == theirs.shape
        size = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * (1e-3 + size))
