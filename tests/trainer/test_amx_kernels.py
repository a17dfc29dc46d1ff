"""Our kernels compute what float64 computes, to bfloat16's rounding; where they are not there PyTorch takes over."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vime.trainer import amx_kernels, attention, logprob, norm, swiglu, weight_gradient
from vime.trainer.amx_attention import has_amx
from vime.trainer.packed_sequences import packed_sequences

pytestmark = pytest.mark.skipif(not has_amx() or amx_kernels.library() is None, reason="needs a processor with AMX, and g++")
LENGTHS = [[1], [32, 1, 7], [300, 64, 33, 2]]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_same(ours: Callable[..., Any], expected: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 0.01) -> None:
    """Values and gradients, towards random directions, of one function in bfloat16 and the other in float64."""
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
        assert difference <= tolerance * size + 1e-4, f"{difference:.3g} of {size:.3g}"


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
        return attention._AmxAttention.apply(query, key, value, packed, 0.2)

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
        return amx_kernels.suits_attention(query, query, packed_sequences([length]))

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert suits(64, 32)
        assert not suits(64, 48) and not suits(64, 32, torch.float32) and not suits(amx_kernels.LONGEST + 1, 32)
        torch.set_num_threads(3)
        assert not suits(64, 32), "two heads have no work for three threads"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(5, 8), (1, 3, 5), (37, 2, 16), (0, 8), (3, 1, 4, 33)])
def test_norms(shape: tuple[int, ...]):
    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm._AmxRMSNorm.apply(x, weight, 1e-6)

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (shape[-1],), weight, eps=1e-6)

    assert_same(ours, expected, drawn(*shape), 1 + 0.1 * drawn(shape[-1]))


def test_norms_of_heads_that_are_parts_of_a_product():
    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm._AmxRMSNorm.apply(x[..., 32:48], weight, 1e-6)

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x[..., 32:48], (16,), weight, eps=1e-6)

    assert_same(ours, expected, drawn(9, 1, 2, 64), 1 + 0.1 * drawn(16))


@pytest.mark.parametrize("shape", [(6, 8), (5, 1, 6), (0, 4), (7, 2, 80)])
def test_swiglu(shape: tuple[int, ...]):
    def expected(x: torch.Tensor) -> torch.Tensor:
        gate, linear = x.chunk(2, dim=-1)
        return F.silu(gate) * linear

    assert_same(lambda x: swiglu.swiglu(x, None), expected, 3 * drawn(*shape))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", [5, 32, 1000])
def test_logprobs_and_entropies(vocabulary: int, temperature: float):
    target = torch.randint(vocabulary, (6,), generator=torch.Generator().manual_seed(2))

    def ours(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logprob._AmxLogprobAndEntropy.apply(logits, target, temperature)

    def expected(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (logits / temperature).log_softmax(-1)
        return logprobs.gather(1, target.unsqueeze(1)).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)

    logits = 3 * drawn(6, vocabulary)
    assert_same(ours, expected, logits)
    found, known = ours(logits), expected(logits.double())
    for one, other in zip(found, known):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 32, 32), (33, 96, 64), (900, 544, 96), (70, 64, 576), (0, 32, 32)])
def test_weight_gradients_are_added_up_without_rounding(tokens: int, outputs: int, inputs: int):
    x, gradient, before = drawn(tokens, inputs), drawn(tokens, outputs, seed=1), drawn(outputs, inputs, seed=2).float()
    found = before.clone()
    weight_gradient._Extension.wgrad_gemm_accum_fp32(x, gradient, found)
    torch.testing.assert_close(found, before + gradient.float().t() @ x.float(), rtol=1e-5, atol=1e-4)


def test_weight_gradients_of_other_sizes_are_left_to_pytorch():
    x, gradient = drawn(9, 40), drawn(9, 32, seed=1)
    found = torch.zeros(32, 40)
    assert not amx_kernels.suits_weight_gradient(x, gradient, found)
    weight_gradient._Extension.wgrad_gemm_accum_fp32(x, gradient, found)
    torch.testing.assert_close(found, gradient.float().t() @ x.float(), rtol=0.01, atol=0.05)


def test_on_cuda_megatrons_extension_stays(monkeypatch: pytest.MonkeyPatch):
    assert weight_gradient.install()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not weight_gradient.install()


@pytest.mark.parametrize("tied", [False, True])
def test_updates_are_those_of_pytorch(
    tied: bool,
    engine: Callable[..., Any],
    make_config: Callable[..., Any],
    make_samples: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    import transformers

    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = transformers.Qwen3Config(vocab_size=160, tie_word_embeddings=tied, **shape, **heads)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    called, found = set(), []
    call = amx_kernels._call
    monkeypatch.setattr(amx_kernels, "_call", lambda name, *arguments: (called.add(name), call(name, *arguments)))
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(amx_kernels, "library", lambda: None)
        trained = engine(make_config(tmp_path, precision="bfloat16", lr=1e-5, max_tokens_per_micro_batch=150))
        metrics = [trained.train([make_samples(9, seed=step)], step) for step in range(2)]
        found.append([step[f"train/{name}"] for step in metrics for name in ("policy_loss", "entropy", "grad_norm")])
        assert called == set(amx_kernels.SIGNATURES), set(amx_kernels.SIGNATURES) - called
    assert found[0] == pytest.approx(found[1], rel=0.02, abs=1e-3) and found[0] != found[1]


@pytest.mark.parametrize("missing", ["compiler", "OpenMP", "AMX"])
def test_without_a_compiler_or_amx_there_are_no_kernels(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(amx_kernels, "FOLDER", tmp_path)
    load = amx_kernels.library.__wrapped__
    assert load() is not None and [file.suffix for file in tmp_path.iterdir()] == [".so"]
    if missing == "compiler":
        monkeypatch.setattr(amx_kernels, "shutil", SimpleNamespace(which=lambda _: None))
    elif missing == "OpenMP":
        monkeypatch.setattr(amx_kernels, "_openmp", lambda: None)
    else:
        monkeypatch.setattr(amx_kernels, "has_amx", lambda: False)
    assert load() is None


def test_a_compiler_that_fails_leaves_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(amx_kernels, "FOLDER", tmp_path)
    monkeypatch.setattr(amx_kernels, "FLAGS", "-mno-such-processor")
    assert amx_kernels.library.__wrapped__() is None
    assert "could not compile" in caplog.text and not list(tmp_path.iterdir())
