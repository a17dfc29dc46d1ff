"""Weights as integers: what is kept, how far it is from what was given, and how a layer multiplies with them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.inside_vllm.cpu_integers import multiply
from vime.weights.quantize import LARGEST, quantized

NAME = "model.layers.3.mlp.down_proj.weight"


def test_only_weights_of_linear_layers_in_the_layers_become_integers():
    others = [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.input_layernorm.weight",
    ]
    tensors = {name: torch.ones(4, 4) for name in (*others, NAME)}
    found = dict(quantized(tensors.items()))
    assert list(found) == [*others, NAME, NAME + "_scale"]
    assert all(found[name] is tensors[name] for name in others)
    assert found[NAME].dtype is torch.int8 and found[NAME + "_scale"].shape == (4, 1)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**30), outputs=st.integers(1, 9), inputs=st.integers(1, 17), size=st.sampled_from([1e-6, 1.0, 1e4]))
def test_each_weight_is_within_half_an_integer(seed: int, outputs: int, inputs: int, size: float):
    weight = size * torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0.0
    integers, scales = (tensor.float() for _, tensor in quantized([(NAME, weight)]))
    assert integers.abs().max() <= LARGEST
    assert ((integers * scales - weight).abs() <= 0.5001 * scales).all()
    again = [tensor for _, tensor in quantized([(NAME, integers * scales)])]
    assert torch.equal(again[0].float(), integers), "what a server computes with is sent again as it is"


def test_a_product_is_that_of_the_integers():
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(5, 3, 64, generator=generator), torch.randn(48, generator=generator)
    weight, scale = (tensor for _, tensor in quantized([(NAME, torch.randn(48, 64, generator=generator))]))
    steps = x.abs().amax(-1, keepdim=True) / LARGEST
    expected = ((x / steps).round().long() @ weight.long().t()) * steps * scale.flatten() + bias
    assert torch.allclose(multiply(x, weight.float().t(), scale.flatten(), bias), expected, rtol=1e-5, atol=1e-5)
