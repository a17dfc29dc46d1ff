"""The gated delta net of packed rows: the rule token by token, and no trace of one sequence in another."""

import pytest
import torch

KEY_HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, KERNEL = 2, 4, 8, 12, 4
SIZES = [KEY_HEADS * KEY_WIDTH, KEY_HEADS * KEY_WIDTH, VALUE_HEADS * VALUE_WIDTH]
INPUTS = sum(SIZES) + SIZES[2] + 2 * VALUE_HEADS


def random_lengths(seed: int) -> list[int]:
    """Lengths of a row's sequences, some shorter than the convolution, some around the ends of chunks."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [torch.randint(1, 6, (2,), generator=generator), torch.randint(60, 70, (2,), generator=generator)]
    kinds += [torch.randint(1, 200, (int(torch.randint(1, 4, (1,), generator=generator)),), generator=generator)]
    lengths = torch.cat(kinds)
    return lengths[torch.randperm(len(lengths), generator=generator)].tolist()


def parameters(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "filter_JW": (sum(SIZES), KERNEL),
        "log_decay_H": (VALUE_HEADS,),
        "bias_H": (VALUE_HEADS,),
        "norm_V": (VALUE_WIDTH,),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def outputs(inputs_TI: torch.Tensor, lengths: list[int], weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """The layer's outputs of a row, [T, H * V]."""
    from vime.model.size import STATE_CHUNK
    from vime.trainer.delta_net import attend_linear
    from vime.trainer.packed_sequences import packed_sequences

    packed = packed_sequences(lengths)
    assert packed.position_T is not None
    return attend_linear(
        inputs_TI,
        **weights,
        plan=packed.chunk_plan(STATE_CHUNK),
        position_T=packed.position_T,
        heads=(KEY_HEADS, VALUE_HEADS),
        widths=(KEY_WIDTH, VALUE_WIDTH),
        eps=1e-6,
    )


def by_the_rule(inputs_TI: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """The outputs of one sequence, token by token in float64 (arXiv 2412.06464, equation 10)."""
    inputs_TI = inputs_TI.double()
    filter_JW, log_decay_H, bias_H, norm_V = (weight.double() for weight in weights.values())
    qkv_TJ, gate_TZ, strength_TH, decay_TH = inputs_TI.split([sum(SIZES), SIZES[2], VALUE_HEADS, VALUE_HEADS], dim=1)
    decay_TH = (-log_decay_H.exp() * torch.nn.functional.softplus(decay_TH + bias_H)).exp()
    state, results = torch.zeros(VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, dtype=torch.float64), []
    for token in range(len(inputs_TI)):
        seen = range(max(0, token - KERNEL + 1), token + 1)
        mixed_J = torch.stack([qkv_TJ[place] * filter_JW[:, KERNEL - 1 - token + place] for place in seen]).sum(0)
        query, key, value = torch.nn.functional.silu(mixed_J).split(SIZES)
        query, key = (
            x.view(KEY_HEADS, -1) / (x.view(KEY_HEADS, -1).square().sum(1, keepdim=True) + 1e-6).sqrt() for x in (query, key)
        )
        query, key = (x.repeat_interleave(VALUE_HEADS // KEY_HEADS, dim=0) for x in (query, key))
        state = state * decay_TH[token, :, None, None]
        predicted = torch.einsum("hk,hkv->hv", key, state)
        change = (value.view(VALUE_HEADS, -1) - predicted) * strength_TH[token].sigmoid().unsqueeze(1)
        state = state + torch.einsum("hk,hv->hkv", key, change)
        result = torch.einsum("hk,hkv->hv", query, state) * KEY_WIDTH**-0.5
        result = result / (result.square().mean(1, keepdim=True) + 1e-6).sqrt() * norm_V
        results.append((result * torch.nn.functional.silu(gate_TZ[token].view(VALUE_HEADS, -1))).flatten())
    return torch.stack(results)


@pytest.mark.parametrize("seed", range(6))
def test_each_sequence_of_a_row_follows_the_rule_as_if_it_were_alone(seed: int) -> None:
    lengths = random_lengths(seed)
    inputs_TI = torch.randn(sum(lengths), INPUTS, generator=torch.Generator().manual_seed(seed + 100))
    weights = parameters(seed)
    found = outputs(inputs_TI, lengths, weights).split(lengths)
    for own, sequence in zip(found, inputs_TI.split(lengths), strict=True):
        torch.testing.assert_close(own.double(), by_the_rule(sequence, weights), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_no_token_has_a_gradient_in_another_sequence(seed: int) -> None:
    lengths = random_lengths(seed)
    inputs_TI = torch.randn(sum(lengths), INPUTS, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    own = seed % len(lengths)
    (gradient_TI,) = torch.autograd.grad(
        outputs(inputs_TI, lengths, parameters(seed)).split(lengths)[own].square().sum(), inputs_TI
    )
    has_gradient = [bool(part.any()) for part in gradient_TI.split(lengths)]
    assert has_gradient == [number == own for number in range(len(lengths))]


@pytest.mark.parametrize("seed", range(4))
def test_the_gradients_of_a_row_are_the_sums_of_those_of_its_sequences(seed: int) -> None:
    lengths, weights = random_lengths(seed), parameters(seed)
    inputs_TI = torch.randn(sum(lengths), INPUTS, generator=torch.Generator().manual_seed(seed))

    def gradients(sequences: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in (sequences, *weights.values())]
        result = outputs(leaves[0], counts, dict(zip(weights, leaves[1:], strict=True)))
        return list(torch.autograd.grad(result.square().sum(), leaves))

    of_row = gradients(inputs_TI, lengths)
    alone = [gradients(part, [len(part)]) for part in inputs_TI.split(lengths)]
    expected = [torch.cat([found[0] for found in alone]), *(torch.stack(parts).sum(0) for parts in zip(*(f[1:] for f in alone)))]
    for found, wanted in zip(of_row, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
