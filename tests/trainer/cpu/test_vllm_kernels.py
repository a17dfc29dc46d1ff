"""vLLM's kernels compute what PyTorch computes, and shapes that they cannot take are left to PyTorch."""

import pytest
import torch

from vime.trainer import attention, cpu
from vime.trainer.cpu import vllm_kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("channels", [16, 48, 192])
def test_norms_are_float64s_to_rounding(dtype: torch.dtype, channels: int):
    x, weight = torch.randn(7, channels).to(dtype), (1 + torch.rand(channels)).to(dtype)
    found = vllm_kernels.rms_norm(x, weight, 1e-6)
    assert found is not None and found.dtype is dtype
    expected = torch.nn.functional.rms_norm(x.double(), (channels,), weight.double(), eps=1e-6)
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [32, 64, 128])
def test_heads_are_turned_as_pytorch_turns_them_and_the_input_stays(
    dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch
):
    whole = torch.randn(9, 3, 2 * width).to(dtype)
    x, before = whole[..., :width], whole.clone()  # not contiguous, as queries and keys are
    angle = torch.randn(9, width // 2)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    cpu.install()
    found = attention._rotate(x, cos, sin)
    monkeypatch.setattr(vllm_kernels, "_kernels", lambda: None)
    expected = attention._rotate(x.double(), cos.double(), sin.double())
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert found.dtype is dtype and torch.equal(whole, before)


def test_there_are_no_kernels_for_parts_of_a_vector_and_nothing():
    assert vllm_kernels.rms_norm(torch.randn(2, 24), torch.ones(24), 1e-6) is None
    assert vllm_kernels.rms_norm(torch.randn(0, 16), torch.ones(16), 1e-6) is None
    angles = torch.randn(2, 12)
    assert vllm_kernels.rotate(torch.randn(2, 1, 24).bfloat16(), angles, angles) is None
