"""Models with attention sinks: what they are not combined with, and what they weigh."""

from collections.abc import Callable
from typing import Any

import pytest

from vime.config import (
    Family,
    KVCacheDtype,
    ModelConfig,
    Quantization,
    RoutingReplay,
    RunConfig,
    ServedModelConfig,
    SpeculationMethod,
    TrainedQuantization,
)
from vime.model.size import num_parameters
from vime.preflight.rules.sinks import sinks


def config_of(family: str = "gpt_oss") -> RunConfig:
    model = ModelConfig(checkpoint="maker/sinks", family=Family(family), num_layers=8, tie_word_embeddings=False)
    config = RunConfig(model=model)
    config.serving.models = {"actor": ServedModelConfig(trained=True)}
    return config


def actor(config: RunConfig) -> ServedModelConfig:
    return config.serving.models["actor"]


UNTRIED: dict[str, Callable[[RunConfig], Any]] = {
    "model.tie_word_embeddings": lambda config: setattr(config.model, "tie_word_embeddings", True),
    "trainer.lora.rank": lambda config: setattr(config.trainer.lora, "rank", 8),
    "trainer.quantization": lambda config: setattr(config.trainer, "quantization", TrainedQuantization.int8),
    "trainer.routing_replay": lambda config: setattr(config.trainer, "routing_replay", RoutingReplay.rollout),
    "deterministic": lambda config: setattr(config, "deterministic", True),
    "serving.models.actor.quantization": lambda config: setattr(actor(config), "quantization", Quantization.int8),
    "serving.models.actor.kv_cache_dtype": lambda config: setattr(actor(config), "kv_cache_dtype", KVCacheDtype("fp8")),
    "serving.models.actor.adapter": lambda config: setattr(actor(config), "adapter", "maker/adapter"),
    "serving.models.actor.speculative.method": lambda config: setattr(
        actor(config).speculative, "method", SpeculationMethod.ngram
    ),
}


@pytest.mark.parametrize("key", UNTRIED)
def test_what_has_not_been_tried_is_refused_by_its_key_with_the_usual_value(key: str) -> None:
    config, other = config_of(), config_of("qwen3_moe")
    assert not sinks(config)
    for each in (config, other):
        UNTRIED[key](each)
    (problem,) = sinks(config)
    assert problem.key == key
    assert problem.remedy.endswith(("use 0", "use none", "use null", "use auto", "use false"))
    assert not sinks(other), "other families are not concerned"


def test_the_sizes_of_the_published_model_make_its_number_of_parameters() -> None:
    from vime.preflight.compose import compose_run

    model = compose_run(["model=gpt-oss-20b", "+method=memagent", "mode=plan"]).config.model
    assert num_parameters(model) / 1e9 == pytest.approx(20.91, rel=0.002)
