"""Linear attention: its sizes, what it is not combined with, and what it weighs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from vime.config import (
    Family,
    KVCacheDtype,
    LinearAttentionConfig,
    ModelConfig,
    Precision,
    Quantization,
    RunConfig,
    ServedModelConfig,
    ServerGroupConfig,
    ServerRole,
    SpeculationMethod,
    TrainedQuantization,
)
from vime.memory.kv_cache import kv_cache_tokens
from vime.model.size import kv_bytes_per_token, num_parameters, state_bytes
from vime.preflight.rules.linear_attention import linear_attention
from vime.trainer.packing import sequence_flops

KEY = "model.linear_attention"
SIZES = {"num_key_heads": 4, "num_value_heads": 8, "key_head_dim": 16, "value_head_dim": 24, "conv_kernel": 4}


def config_of(**linear: int) -> RunConfig:
    sizes = LinearAttentionConfig(**({"full_every": 4} | SIZES | linear))
    model = ModelConfig(checkpoint="maker/linear", family=Family("qwen3_5_text"), num_layers=8, linear_attention=sizes)
    config = RunConfig(model=model)
    config.serving.models = {"actor": ServedModelConfig(trained=True)}
    return config


def problems(config: RunConfig) -> dict[str, str]:
    return {problem.key: problem.remedy for problem in linear_attention(config)}


def test_a_model_with_all_sizes_is_accepted_and_each_missing_one_is_named() -> None:
    assert not problems(config_of())
    for name in ("full_every", *SIZES):
        assert list(problems(config_of(**{name: 0}))) == [f"{KEY}.{name}"]


def test_a_family_without_linear_attention_takes_no_sizes_of_it() -> None:
    config = config_of()
    config.model.family = Family("qwen3")
    assert set(problems(config)) == {f"{KEY}.{name}" for name in ("full_every", *SIZES)}


@pytest.mark.parametrize("size", [3, 8])
def test_tensor_parallel_sizes_divide_both_kinds_of_heads(size: int) -> None:
    config = config_of()
    config.trainer.tensor_parallel_size = size
    config.serving.models["actor"].tensor_parallel_size = size
    found = problems(config)
    assert f"{KEY}.num_key_heads" in found["trainer.tensor_parallel_size"]
    assert f"{KEY}.num_key_heads" in found["serving.models.actor.tensor_parallel_size"]


def test_value_heads_are_a_multiple_of_key_heads() -> None:
    assert "num_value_heads" in problems(config_of(num_value_heads=6))[f"{KEY}.num_key_heads"]


UNTRIED: dict[str, Callable[[RunConfig], Any]] = {
    "trainer.context_parallel_size": lambda config: setattr(config.trainer, "context_parallel_size", 2),
    "trainer.lora.rank": lambda config: setattr(config.trainer.lora, "rank", 8),
    "trainer.quantization": lambda config: setattr(config.trainer, "quantization", TrainedQuantization.int4),
    "serving.models.actor.quantization": lambda config: setattr(actor(config), "quantization", Quantization.int8),
    "serving.models.actor.kv_cache_dtype": lambda config: setattr(actor(config), "kv_cache_dtype", KVCacheDtype("fp8")),
    "serving.models.actor.speculative.method": lambda config: setattr(
        actor(config).speculative, "method", SpeculationMethod.ngram
    ),
    "serving.models.actor.groups": lambda config: actor(config).groups.update(
        decode=ServerGroupConfig(num_replicas=1, role=ServerRole.decode)
    ),
    "deterministic": lambda config: setattr(config, "deterministic", True),
}


def actor(config: RunConfig) -> ServedModelConfig:
    return config.serving.models["actor"]


@pytest.mark.parametrize("key", UNTRIED)
def test_what_has_not_been_tried_is_refused_by_its_key(key: str) -> None:
    config = config_of()
    UNTRIED[key](config)
    assert list(problems(config)) == [key]


def test_servers_of_other_models_are_not_concerned() -> None:
    config = config_of()
    config.serving.models["judge"] = ServedModelConfig(checkpoint="maker/other", quantization=Quantization.fp8_per_channel)
    assert not problems(config)


def test_linear_layers_have_states_in_place_of_keys_and_values() -> None:
    model = config_of().model
    of_attention = replace(model, linear_attention=LinearAttentionConfig())
    assert kv_bytes_per_token(model, Precision.bfloat16) * 4 == kv_bytes_per_token(of_attention, Precision.bfloat16)
    channels = 2 * 4 * 16 + 8 * 24
    assert state_bytes(model, Precision.bfloat16) == 6 * (8 * 16 * 24 * 4 + channels * 3 * 2)
    assert state_bytes(of_attention, Precision.bfloat16) == 0
    assert sequence_flops(model, 2000) - 2 * sequence_flops(model, 1000) == pytest.approx(
        (sequence_flops(of_attention, 2000) - 2 * sequence_flops(of_attention, 1000)) / 4
    )


def test_states_take_their_place_in_the_cache() -> None:
    config = config_of()
    few, many = (replace(actor(config), max_num_seqs=number) for number in (1, 65))
    per_token = kv_bytes_per_token(config.model, config.trainer.precision)
    lost = 64 * state_bytes(config.model, config.trainer.precision) / per_token
    assert kv_cache_tokens(config, few) - kv_cache_tokens(config, many) == pytest.approx(lost)


@pytest.mark.parametrize(("name", "billions"), [("qwen3.5-0.8b", 0.75), ("qwen3.5-9b", 8.95), ("qwen3.5-27b", 26.9)])
def test_the_sizes_of_published_models_make_their_numbers_of_parameters(name: str, billions: float) -> None:
    from vime.preflight.compose import compose_run

    model = compose_run([f"model={name}", "+method=memagent", "mode=plan"]).config.model
    assert num_parameters(model) / 1e9 == pytest.approx(billions, rel=0.01)
