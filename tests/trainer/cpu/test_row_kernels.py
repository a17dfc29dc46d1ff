"""Our kernels for rows compute what float64 computes, in both dtypes; where they are not there PyTorch takes over."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.float64 import assert_same, drawn
from vime.trainer.cpu import blocks, compiled, log_softmax, rms_norm, rows, swiglu


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    if rows.library(request.param) is None:
        pytest.skip("needs a processor with AVX-512, and g++")
    yield request.param


@pytest.mark.parametrize("shape", [(5, 8), (1, 3, 5), (37, 2, 16), (0, 8), (3, 1, 4, 33)])
def test_norms(shape: tuple[int, ...], dtype: torch.dtype):
    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm._RowsRMSNorm.apply(x, weight, 1e-6)

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (shape[-1],), weight, eps=1e-6)

    assert_same(ours, expected, drawn(*shape, dtype=dtype), 1 + 0.1 * drawn(shape[-1], dtype=dtype))


def test_norms_of_heads_that_are_parts_of_a_product(dtype: torch.dtype):
    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm._RowsRMSNorm.apply(x[..., 32:48], weight, 1e-6)

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x[..., 32:48], (16,), weight, eps=1e-6)

    assert_same(ours, expected, drawn(9, 1, 2, 64, dtype=dtype), 1 + 0.1 * drawn(16, dtype=dtype))


@pytest.mark.parametrize("shape", [(6, 8), (5, 1, 6), (0, 4), (7, 2, 80)])
def test_swiglu(shape: tuple[int, ...], dtype: torch.dtype):
    def expected(x: torch.Tensor) -> torch.Tensor:
        gate, linear = x.chunk(2, dim=-1)
        return F.silu(gate) * linear

    assert_same(lambda x: swiglu.swiglu(x, None), expected, 3 * drawn(*shape, dtype=dtype))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", [5, 32, 1000])
def test_logprobs_and_entropies(vocabulary: int, temperature: float, dtype: torch.dtype):
    target = torch.randint(vocabulary, (6,), generator=torch.Generator().manual_seed(2))

    def ours(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return log_softmax._WholeLogprobAndEntropy.apply(logits, target, temperature)

    def expected(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (logits / temperature).log_softmax(-1)
        return logprobs.gather(1, target.unsqueeze(1)).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)

    logits = 3 * drawn(6, vocabulary, dtype=dtype)
    assert_same(ours, expected, logits)
    found, known = ours(logits), expected(logits.double())
    for one, other in zip(found, known):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_one_bad_logit_makes_a_bad_logprob(dtype: torch.dtype):
    for bad in (torch.nan, torch.inf):
        logits = drawn(2, 40, dtype=dtype)
        logits[0, 7] = bad
        found, _, _ = rows.logprobs(logits, torch.tensor([3, 3]), 1.0)
        assert found.isnan().tolist() == [True, False], bad


@pytest.mark.parametrize("tied", [False, True])
def test_updates_are_those_of_pytorch(
    tied: bool,
    dtype: torch.dtype,
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
    precision = str(dtype).removeprefix("torch.")
    called, expected = set(), set(rows.SIGNATURES)
    if dtype is torch.bfloat16 and blocks.library() is not None:
        expected |= set(blocks.SIGNATURES)
    for module in (rows, blocks):
        monkeypatch.setattr(module, "_call", partial(_noted, called, module._call))
    found = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(rows, "library", lambda _: None)
            monkeypatch.setattr(blocks, "library", lambda: None)
        config = make_config(tmp_path, precision=precision, lr=1e-5, max_tokens_per_micro_batch=150)
        trained = engine(replace(config, algorithm=replace(config.algorithm, clip_low=1.0, clip_high=100.0)))  # clipping jumps
        metrics = [trained.train([make_samples(9, seed=step)], step) for step in range(2)]
        found.append([step[f"train/{name}"] for step in metrics for name in ("policy_loss", "entropy", "grad_norm")])
        assert called == expected, expected ^ called
    tolerance: dict[str, Any] = {"rel": 1e-5, "abs": 1e-6} if dtype is torch.float32 else {"rel": 0.02, "abs": 1e-3}
    assert found[0] == pytest.approx(found[1], **tolerance) and found[0] != found[1]


def _noted(called: set[str], call: Callable[..., Any], name: str, *arguments: Any) -> Any:
    called.add(name)
    return call(name, *arguments)


@pytest.mark.parametrize("missing", ["compiler", "OpenMP"])
def test_without_a_compiler_or_openmp_there_are_no_kernels(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    if shutil.which("g++") and compiled.has(*compiled.AVX512):
        assert _loaded() is not None and [file.suffix for file in tmp_path.iterdir()] == [".so"]
    if missing == "compiler":
        monkeypatch.setattr(compiled, "shutil", SimpleNamespace(which=lambda _: None))
    else:
        monkeypatch.setattr(compiled, "_openmp", lambda: None)
    assert _loaded() is None


def test_a_compiler_that_fails_leaves_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    monkeypatch.setattr(compiled, "FLAGS", "-mno-such-processor")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    assert _loaded() is None
    assert "could not compile" in caplog.text and not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_the_processor_there_are_no_kernels(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    for module in (rows, blocks):
        monkeypatch.setattr(module, "has", lambda *_: False)
    assert rows.library.__wrapped__(dtype) is None and blocks.library.__wrapped__() is None


def _loaded() -> Any | None:
    return compiled.load(rows.SOURCE, "-DVALUE=float", rows.SIGNATURES)
