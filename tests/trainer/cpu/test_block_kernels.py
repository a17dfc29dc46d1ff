"""Our kernels for blocks compute what float64 computes, to bfloat16's rounding: with AMX, and with AVX-512 alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.float64 import assert_same, drawn
from vime.trainer import weight_gradient
from vime.trainer.cpu import bfloat16_attention, blocks
from vime.trainer.packed_sequences import packed_sequences

LENGTHS = [[1], [32, 1, 7], [300, 64, 33, 2]]


@pytest.fixture(autouse=True, params=["AMX", "AVX-512"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The instructions that the kernels of a test multiply with."""
    with_amx = request.param == "AMX"
    if with_amx and not blocks.has_amx():
        pytest.skip("needs a processor with AMX")
    kernels = blocks.library() if with_amx else blocks.compiled(with_amx=False)
    if kernels is None:
        pytest.skip("needs a processor that multiplies bfloat16, and g++")
    monkeypatch.setattr(blocks, "library", lambda: kernels)
    return request.param


def turned(x_THD: torch.Tensor, cos_TK: torch.Tensor, sin_TK: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_TK.double().unsqueeze(1), sin_TK.double().unsqueeze(1)
    first, second = x_THD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@pytest.mark.parametrize("has_angles", [False, True])
@pytest.mark.parametrize(("heads", "groups", "channels"), [(4, 2, 32), (2, 2, 64), (3, 1, 96), (4, 2, 128)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_attention_of_packed_sequences(lengths: list[int], heads: int, groups: int, channels: int, has_angles: bool):
    packed, total = packed_sequences(lengths), sum(lengths)
    angle = torch.rand(total, channels // 2, generator=torch.Generator().manual_seed(3)) * 6
    if has_angles:
        packed.cos_TD, packed.sin_TD = angle.cos().bfloat16(), angle.sin().bfloat16()

    def ours(query: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
        key, value = both.split(channels, dim=-1)  # not contiguous, as in the model
        return bfloat16_attention._BlockAttention.apply(query, key, value, packed, 0.2)

    def expected(query: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
        key, value = both.split(channels, dim=-1)
        if packed.cos_TD is not None and packed.sin_TD is not None:
            query, key = (turned(x, packed.cos_TD, packed.sin_TD) for x in (query, key))
        parts = zip(*(x.split(lengths) for x in (query, key, value)))
        heads_first = ([x.transpose(0, 1).unsqueeze(0) for x in part] for part in parts)
        attended = [F.scaled_dot_product_attention(*part, is_causal=True, scale=0.2, enable_gqa=True) for part in heads_first]
        return torch.cat([x.squeeze(0).transpose(0, 1) for x in attended])

    assert_same(ours, expected, drawn(total, heads, channels), drawn(total, groups, 2 * channels, seed=1))


def test_attention_leaves_what_it_cannot_take_to_pytorch(monkeypatch: pytest.MonkeyPatch):
    def suits(length: int, channels: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        query = torch.zeros(length, 2, channels, dtype=dtype)
        return blocks.suits_attention(query, query, packed_sequences([length]))

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert suits(64, 32)
        assert not suits(64, 48) and not suits(64, 32, torch.float32) and not suits(blocks.LONGEST + 1, 32)
        torch.set_num_threads(3)
        assert not suits(64, 32), "two heads have no work for three threads"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 32, 32), (33, 96, 64), (900, 544, 96), (70, 64, 576), (0, 32, 32)])
def test_weight_gradients_are_added_up_without_rounding(tokens: int, outputs: int, inputs: int):
    x, gradient, before = drawn(tokens, inputs), drawn(tokens, outputs, seed=1), drawn(outputs, inputs, seed=2).float()
    found = before.clone()
    weight_gradient._Extension.wgrad_gemm_accum_fp32(x, gradient, found)
    torch.testing.assert_close(found, before + gradient.float().t() @ x.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(70, 32, 64), (70, 192, 512), (1030, 1056, 544)])
def test_threads_do_not_change_a_weight_gradient(tokens: int, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocks, "flops_per_thread", lambda: 1)
    x, gradient = drawn(tokens, inputs), drawn(tokens, outputs, seed=1)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(torch.zeros(outputs, inputs))
            blocks.add_weight_gradient(gradient, x, found[-1])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], gradient.float().t() @ x.float(), rtol=1e-5, atol=1e-3)
    assert all(each.equal(found[0]) for each in found)


def test_weight_gradients_of_other_sizes_are_left_to_pytorch():
    x, gradient = drawn(9, 40), drawn(9, 32, seed=1)
    found = torch.zeros(32, 40)
    assert not blocks.suits_weight_gradient(x, gradient, found)
    weight_gradient._Extension.wgrad_gemm_accum_fp32(x, gradient, found)
    torch.testing.assert_close(found, gradient.float().t() @ x.float(), rtol=0.01, atol=0.05)


class OnCuda(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True  # type: ignore[assignment]


def test_on_cuda_a_weight_gradient_is_one_product_with_float32_sums(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(blocks, "library", lambda: None)
    assert weight_gradient.install()
    called: list[Any] = []
    monkeypatch.setattr(torch, "addmm", lambda *arguments, **options: called.append((arguments, options)))
    x, gradient = (torch.empty(33, size, dtype=torch.bfloat16).as_subclass(OnCuda) for size in (64, 96))
    found = torch.empty(96, 64).as_subclass(OnCuda)
    weight_gradient.add_weight_gradient(x, gradient, found)
    ((total, left, right), options) = called.pop()
    assert not called and total is options["out"] is found and right is x and left.shape == (96, 33)
    assert options["out_dtype"] is torch.float32
