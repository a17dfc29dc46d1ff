"""Attention in bfloat16 on the CPU, by either of its backward passes: equal to float64's to rounding."""

from typing import Any

import pytest
import torch

from vime.trainer import attention, cpu
from vime.trainer.cpu import bfloat16_attention


class Attention:
    """The attributes that `_attend` reads from its module."""

    softmax_scale = 0.3
    softmax_offset: torch.Tensor | None = None
    """The sinks."""


def softmaxed(qkv: list[torch.Tensor], sinks_H: torch.Tensor | None) -> torch.Tensor:
    """Attention as the formula has it: a sink is one more score."""
    query, key, value = qkv
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = 0.3 * query @ key.transpose(2, 3)
    scores = scores + torch.full_like(scores, -torch.inf).triu(1)
    if sinks_H is not None:
        scores = torch.cat([scores, sinks_H.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=3)
    return scores.softmax(-1)[..., : key.shape[2]] @ value


@pytest.mark.parametrize("num_groups", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 7, 64, 300])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_outputs_and_gradients_are_those_of_float64(
    num_groups: int, length: int, is_wide: bool, has_sinks: bool, monkeypatch: pytest.MonkeyPatch
):
    cpu.install()
    monkeypatch.setattr(bfloat16_attention.blocks, "has_amx", lambda: True)
    monkeypatch.setattr(bfloat16_attention, "is_short", lambda *_: is_wide)
    generator = torch.Generator().manual_seed(length)
    shapes = [(3, heads, length, 32) for heads in (4, num_groups, num_groups)]
    drawn = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    towards = torch.randn(shapes[0], generator=generator)
    narrow, wide = [x.clone().requires_grad_() for x in drawn], [x.double().requires_grad_() for x in drawn]
    own: Any = Attention()
    if has_sinks:
        drawn = torch.randn(4, generator=generator).bfloat16()
        own.softmax_offset = drawn.clone().requires_grad_()
        narrow, wide = [*narrow, own.softmax_offset], [*wide, drawn.double().requires_grad_()]
    query, key, value, *_ = narrow
    found = attention.PackedAttention._attend(own, query, key, value)
    expected = softmaxed(wide[:3], wide[3] if has_sinks else None)
    (found.float() * towards).sum().backward()
    (expected * towards.double()).sum().backward()
    assert found.dtype is torch.bfloat16
    for ours, theirs in [(found, expected), *((ours.grad, theirs.grad) for ours, theirs in zip(narrow, wide, strict=True))]:
        assert ours is not None and theirs is not None and ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, rtol=0.02, atol=0.01 * float(1 + theirs.abs().max()))
