"""The plan's activations are those that autograd saves, counted on real models."""

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import RunConfig, TrainedQuantization
from vime.memory.activations import activation_bytes
from vime.model.families import family_of

SEVERAL_CALLS = [[100, 100, 50], [220, 90, 40, 12, 3]]
"""Lengths of rows that take more than one call of attention."""
ONE_CALL = [[120, 120], [100, 100, 90, 81]]
"""Rows whose outputs are not concatenated, and which may be padded: these keep less than the formula says."""
BYTES = {"float32": 4, "bfloat16": 2}


@pytest.mark.parametrize("recompute", [False, True], ids=["all", "recompute"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "qwen3_moe", "gemma3_text", "qwen3_5_text", "gpt_oss"])
def test_the_formula_of_the_plan_is_the_count(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    precision: str,
    fused: bool,
    recompute: bool,
) -> None:
    from vime.trainer.cpu import bfloat16_attention, blocks, rows
    from vime.trainer.saved_tensors import kept_bytes

    monkeypatch.setattr(bfloat16_attention, "WIDE_BELOW", 0)  # short sequences are widened on the CPU alone
    monkeypatch.setattr(bfloat16_attention, "is_short", lambda *_: False)
    monkeypatch.setattr(blocks, "library", lambda: None)  # it keeps less: no turned queries and keys
    monkeypatch.setattr(rows, "library", lambda _: None)
    if fused and family_of(family).activation != "silu":
        pytest.skip("there is no fused operation for its gate")
    config = make_config(
        models(family), precision=precision, recompute=recompute, megatron_args={"bias_activation_fusion": fused}
    )
    trained = engine(config)
    for lengths in (*SEVERAL_CALLS, *ONE_CALL):
        tokens, found = sum(lengths), kept_bytes(trained.model, lengths)
        planned = activation_bytes(config, tokens) - tokens * config.model.hidden_size * BYTES[precision]  # the head's input
        if recompute:  # the plan has one layer whole, which is computed again in the backward pass
            found += whole_layer(config, tokens)
        assert (0.95 if lengths in SEVERAL_CALLS else 0.85) < found / planned < 1.05, lengths


@pytest.mark.parametrize("quantization", [TrainedQuantization.int8, TrainedQuantization.int4], ids=lambda bits: bits.value)
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_products_of_integers_keep_integers(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    quantization: TrainedQuantization,
) -> None:
    from vime.trainer.cpu import rows
    from vime.trainer.saved_tensors import kept_bytes

    monkeypatch.setattr(rows, "library", lambda _: None)
    config = make_config(models(family), quantization=quantization)
    trained = engine(config)
    for lengths in SEVERAL_CALLS:
        tokens, found = sum(lengths), kept_bytes(trained.model, lengths)
        planned = activation_bytes(config, tokens) - tokens * config.model.hidden_size * BYTES["float32"]
        assert 0.95 < found / planned < 1.05, lengths


@pytest.mark.parametrize("recompute", [False, True], ids=["all", "recompute"])
@pytest.mark.parametrize("targets", ["q_proj", "o_proj,down_proj", "k_proj,up_proj", "q_proj,k_proj,v_proj,o_proj"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_only_adapted_matrices_keep_their_inputs(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    targets: str,
    recompute: bool,
) -> None:
    from vime.trainer.cpu import rows
    from vime.trainer.saved_tensors import kept_bytes

    monkeypatch.setattr(rows, "library", lambda _: None)
    if "moe" in family and ("down" in targets or "up" in targets):
        pytest.skip("experts have no adapters")
    config = make_config(models(family), recompute=recompute, lora={"rank": 8, "targets": targets.split(",")})
    trained = engine(config)
    for lengths in SEVERAL_CALLS:
        tokens, found = sum(lengths), kept_bytes(trained.model, lengths)
        planned = activation_bytes(config, tokens) - tokens * config.model.hidden_size * BYTES["float32"]
        if recompute:
            found += whole_layer(config, tokens)
        # nothing before the first adapter has a gradient: here most of the attention of one layer of four
        assert (0.95 if recompute or targets[0] in "qk" else 0.8) < found / planned < 1.05, lengths


def whole_layer(config: RunConfig, tokens: int) -> float:
    """Bytes that one layer keeps without recomputation, of the kind that keeps most."""
    one, none = copy.deepcopy(config), copy.deepcopy(config)
    one.trainer.recompute = none.trainer.recompute = False
    one.model.num_layers, none.model.num_layers = 1, 0
    kept = [activation_bytes(one, tokens)]
    if one.model.linear_attention.full_every:
        one.model.linear_attention.full_every = 1  # the only layer has attention
        kept.append(activation_bytes(one, tokens))
    return max(kept) - activation_bytes(none, tokens)


class Mark:
    """Stays as long as the node of a graph that holds it."""


def test_a_count_leaves_no_graph_behind() -> None:
    from vime.trainer.saved_tensors import SavedTensors

    linear = torch.nn.Linear(4, 4)
    with SavedTensors(linear) as saved:
        result = linear(torch.ones(2, 4)).exp()  # keeps its own output
    assert result.grad_fn is not None
    mark = Mark()
    result.grad_fn.metadata["mark"], left = mark, weakref.ref(mark)
    del result, mark
    gc.collect()
    assert saved.num_bytes and left() is None
