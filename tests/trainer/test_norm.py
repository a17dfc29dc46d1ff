"""RMSNorm on CUDA keeps little for its backward pass."""

from types import SimpleNamespace

import pytest
import torch

from vime.trainer import norm

SHAPES = [(5, 8), (1, 3, 4), (37, 2, 16), (0, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_on_cuda_it_keeps_its_input_and_a_number_per_row(shape: tuple[int, ...]) -> None:
    x, gradient = (torch.empty(*shape, 2, dtype=torch.bfloat16, device="meta")[..., 0] for _ in range(2))
    weight, context = torch.empty(shape[-1], dtype=torch.bfloat16, device="meta"), SimpleNamespace()
    context.save_for_backward = lambda *tensors: setattr(context, "saved_tensors", tensors)
    result = norm._FusedRMSNorm.forward(context, x, weight, 1e-6)
    found, of_weight, _ = norm._FusedRMSNorm.backward(context, gradient)
    assert result.shape == found.shape == x.shape and of_weight.shape == weight.shape and result.dtype is found.dtype is x.dtype
    rows = x.numel() // shape[-1]
    assert sum(tensor.nbytes for tensor in context.saved_tensors) == 2 * x.numel() + 4 * rows + weight.nbytes
