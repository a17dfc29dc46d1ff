"""Quantization-aware training: layers multiply the numbers that servers get, and gradients pass through what is rounded.

In 8 bits the smallest difference of an input may round it to the next integer, so whole models agree up to a share of what
quantization changes, and layers with the same inputs up to rounding.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.config import RunConfig, TrainedQuantization
from vime.inside_vllm.cpu_integers import multiply
from vime.types import Sample
from vime.weights.quantize import (
    GROUP,
    LARGEST_OF_4_BITS,
    SCALE,
    four_bits,
    in_four_bits,
    integers,
    is_quantized,
    largest,
    quantized,
    scale_of,
)

FAMILIES = ["qwen2", "qwen3", "llama", "gemma3_text"]
INT8, INT4 = TrainedQuantization.int8, TrainedQuantization.int4
BITS = pytest.mark.parametrize("bits", [INT8, INT4], ids=lambda bits: bits.value)


def layer_of(kind: str) -> Any:
    """A linear layer of one rank, as far as the product looks at it."""
    from megatron.core.tensor_parallel import layers

    found: Any = object.__new__(getattr(layers, kind))
    torch.nn.Module.__init__(found)
    found.tp_group = SimpleNamespace(size=lambda: 1)
    return found


def product(bits: TrainedQuantization, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The output of a layer of one rank."""
    from vime.trainer.quantization import _forward

    options = {"gradient_accumulation_fusion": False, "allreduce_dgrad": False, "sequence_parallel": False}
    return _forward(layer_of("RowParallelLinear"), bits, input=x, weight=weight, bias=bias, **options)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Values that 8-bit integers represent, a scale for each row."""
    scale = scale_of(largest(values))
    return (integers(values, scale) * scale).to(values.dtype)


@BITS
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**30), tokens=st.integers(1, 5), outputs=st.integers(1, 7), groups=st.integers(1, 3))
def test_gradients_are_those_of_a_product_of_what_is_rounded(
    world: None, bits: TrainedQuantization, seed: int, tokens: int, outputs: int, groups: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, 1, GROUP * groups), (outputs, GROUP * groups), (outputs,), (tokens, 1, outputs)
    x, weight, bias, towards = (torch.randn(shape, generator=generator) for shape in shapes)
    x[0] = 0.0
    for tensor in (x, weight, bias):
        tensor.requires_grad_()
    output = product(bits, x, weight, bias)
    (output * towards).sum().backward()
    seen_x, seen_weight = (rounded(x.detach()), rounded(weight.detach())) if bits is INT8 else (x.detach(), four_bits(weight))
    assert torch.allclose(output, seen_x @ seen_weight.t() + bias, rtol=1e-4, atol=1e-4)
    expected = towards @ seen_weight, torch.einsum("tbo,tbi->oi", towards, seen_x), towards.sum((0, 1))
    for tensor, gradient in zip((x, weight, bias), expected, strict=True):
        assert tensor.grad is not None and torch.allclose(tensor.grad, gradient, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**30), size=st.sampled_from([1e-6, 1.0, 1e4]), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_four_bits_are_close_and_few(seed: int, size: float, dtype: torch.dtype) -> None:
    weight = (size * torch.randn(3, 2 * GROUP, generator=torch.Generator().manual_seed(seed))).to(dtype)
    weight[0] = 0.0
    found, most = four_bits(weight).unflatten(1, (-1, GROUP)), largest(weight.unflatten(1, (-1, GROUP)))
    step, groups = most / LARGEST_OF_4_BITS, weight.unflatten(1, (-1, GROUP))
    assert ((found - groups).float().abs() <= 0.54 * step).all()
    assert all(len(group.unique()) <= 2 * LARGEST_OF_4_BITS + 1 for group in found.flatten(0, 1))


@BITS
@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_hugging_faces_with_what_servers_get(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    make_samples: Callable[..., list[Sample]],
    quantize_model: Callable[..., Any],
    family: str,
    bits: TrainedQuantization,
) -> None:
    from transformers import AutoModelForCausalLM

    samples, trained = make_samples(13), engine(make_config(models(family), quantization=bits))
    by_sample = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    found = torch.tensor([value for number in range(13) for value in by_sample[number]])
    plain = AutoModelForCausalLM.from_pretrained(models(family), dtype=torch.float32)
    before = logprobs(plain, samples)
    held = dict(quantize_model(plain, bits).named_parameters())
    sent = dict((quantized if bits is INT8 else in_four_bits)(trained.export()))
    for name, tensor in sent.items():
        if is_quantized(name):
            assert torch.equal(held[name], tensor * sent[name + SCALE] if bits is INT8 else tensor), name
    away, change = (logprobs(plain, samples) - found).abs(), (before - found).abs().mean()
    assert change > 5e-3, "quantization shows"
    assert away.mean() < 0.2 * change if bits is INT8 else away.max() < 1e-4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_each_layer_multiplies_as_a_server_does(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    make_samples: Callable[..., list[Sample]],
    precision: str,
) -> None:
    samples, seen = make_samples(3), []
    trained = engine(make_config(models("qwen2"), quantization=INT8, precision=precision))
    layers = [layer for layer in trained.model.modules() if hasattr(layer, "quantization")]
    assert len(layers) == 4 * 4, "queries, keys and values; output; gate and up; down"
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: seen.append((layer, inputs[0], output[0])))
    trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    assert len(seen) >= len(layers)
    for layer, x, output in seen:
        (_, weight), (_, scale) = quantized([("model.layers.0.q_proj.weight", layer.weight)])
        expected = multiply(x, weight.float().t(), scale.flatten(), layer.bias)
        assert torch.allclose(output, expected, rtol=1e-2 if precision == "bfloat16" else 1e-5, atol=1e-5)


def test_weights_and_reference_stay_as_they_are(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    make_samples: Callable[..., list[Sample]],
) -> None:
    config = make_config(models("qwen3"), quantization=INT8)
    config.algorithm.kl_coefficient = 0.1
    trained, plain = engine(config), engine(make_config(models("qwen3")))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(trained.export(), plain.export(), strict=True))
    assert trained.train([make_samples(13)], 0)["train/kl"] == pytest.approx(0.0, abs=1e-9), "the reference is quantized as well"
    moved = [not torch.equal(a, b) for (_, a), (_, b) in zip(trained.export(), plain.export(), strict=True)]
    assert all(moved), "each tensor has a gradient"


def logprobs(model: Any, samples: list[Sample]) -> torch.Tensor:
    """Logprobs of all response tokens of a Hugging Face model."""
    found = []
    with torch.no_grad():
        for sample in samples:
            tokens = torch.tensor([sample.tokens])
            every = model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:].unsqueeze(1)).squeeze(1)
            found.append(every[-sample.response_length :])
    return torch.cat(found)
