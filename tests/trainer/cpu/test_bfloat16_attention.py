"""Attention in bfloat16 on the CPU, by either of its backward passes: equal to float64's to rounding."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vime.trainer import attention, cpu
from vime.trainer.cpu import bfloat16_attention


class Attention:
    """The attributes that `_attend` reads from its module."""

    softmax_scale = 0.3


@pytest.mark.parametrize("num_groups", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 7, 64, 300])
@pytest.mark.parametrize("is_wide", [False, True])
def test_outputs_and_gradients_are_those_of_float64(num_groups: int, length: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch):
    cpu.install()
    monkeypatch.setattr(bfloat16_attention.blocks, "has_amx", lambda: True)
    monkeypatch.setattr(bfloat16_attention, "is_short", lambda *_: is_wide)
    generator = torch.Generator().manual_seed(length)
    shapes = [(3, heads, length, 32) for heads in (4, num_groups, num_groups)]
    drawn = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    towards = torch.randn(shapes[0], generator=generator)
    narrow, wide = [x.clone().requires_grad_() for x in drawn], [x.double().requires_grad_() for x in drawn]
    own: Any = Attention()
    found = attention.PackedAttention._attend(own, *narrow)
    query, key, value = wide
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3, enable_gqa=True)
    (found.float() * towards).sum().backward()
    (expected * towards.double()).sum().backward()
    assert found.dtype is torch.bfloat16
    for ours, theirs in [(found, expected), *((ours.grad, theirs.grad) for ours, theirs in zip(narrow, wide, strict=True))]:
        assert ours is not None and theirs is not None and ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, rtol=0.02, atol=0.01 * float(1 + theirs.abs().max()))
