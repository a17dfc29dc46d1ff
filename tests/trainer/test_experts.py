"""The grouped products of experts give what the experts give one after another, and the same gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.trainer.cpu import blocks

Models = Callable[..., Path]
MakeConfig = Callable[..., Any]


@pytest.mark.parametrize("bits", ["none", "int4"])
@pytest.mark.parametrize("counts", [[3, 4, 1, 2], [0, 7, 0, 3], [10, 0, 0, 0]], ids=str)
def test_grouped_products_are_those_of_the_experts_one_by_one(
    counts: list[int], bits: str, models: Models, make_config: MakeConfig, engine: Callable[..., Any]
) -> None:
    from megatron.core.transformer.moe.experts import SequentialMLP

    if blocks.library() is None:
        pytest.skip("without a kernel for this processor Megatron's own layers leave gradients to PyTorch")
    model = engine(make_config(models("qwen3_moe"), precision="bfloat16", quantization=bits))
    found: Any = model.model.parts[0].decoder.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(sum(counts[:2]))
    drawn = torch.randn(10, 64, generator=generator).bfloat16(), torch.rand(10, generator=generator)
    towards = torch.randn(10, 64, generator=generator)
    results = []
    for forward in (found._grouped, lambda *arguments: SequentialMLP.forward(found, *arguments)[0]):
        rows, weights = (value.clone().requires_grad_() for value in drawn)
        for parameter in found.parameters():
            parameter.main_grad.zero_()
        output = forward(rows, torch.tensor(counts), weights)
        (output.float() * towards).sum().backward()
        sums = [parameter.main_grad.clone() for parameter in found.parameters()]
        results.append([output, rows.grad, weights.grad, *sums])
    assert len(results[0]) == 3 + 2 * 4
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.02 * float(1e-3 + theirs.abs().max()))
