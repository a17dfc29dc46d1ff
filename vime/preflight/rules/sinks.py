"""Models with attention sinks (gpt-oss): settings that they have not been tried with."""

import json
from collections.abc import Iterator

from vime.config import (
    Fp8Recipe,
    KVCacheDtype,
    ModelAPI,
    Quantization,
    RoutingReplay,
    RunConfig,
    ServedModelConfig,
    SpeculationMethod,
    TrainedQuantization,
)
from vime.errors import Problem
from vime.model.families import family_of


def sinks(config: RunConfig) -> list[Problem]:
    """A model with sinks has a head of its own, and nothing untried is set."""
    if not family_of(config.model.family).has_sinks:
        return []
    problems = list(_training(config))
    for name, served in config.serving.models.items():
        is_own = served.trained or served.checkpoint in (None, config.model.checkpoint)
        if is_own and not served.urls and served.api is not ModelAPI.chat:
            problems += _serving(f"serving.models.{name}", served, config.model.family.value)
    return problems


def _training(config: RunConfig) -> Iterator[Problem]:
    trainer, family = config.trainer, config.model.family.value
    if config.model.tie_word_embeddings:
        remedy = f"vLLM's {family} has a head of its own: use false"
        yield Problem(key="model.tie_word_embeddings", value=True, remedy=remedy)
    untried: dict[str, tuple[object, object]] = {
        "trainer.lora.rank": (trainer.lora.rank, 0),
        "trainer.quantization": (trainer.quantization.value, TrainedQuantization.none.value),
        "trainer.fp8.recipe": (trainer.fp8.recipe.value, Fp8Recipe.none.value),
        "trainer.routing_replay": (trainer.routing_replay.value, RoutingReplay.none.value),
    }
    if not config.cluster.gpus_per_node:
        untried["deterministic"] = (config.deterministic, False)
    for key, (value, usual) in untried.items():
        if value != usual:
            yield Problem(key=key, value=value, remedy=_untried(family, usual))


def _serving(key: str, served: ServedModelConfig, family: str) -> Iterator[Problem]:
    untried: dict[str, tuple[object, object]] = {
        "quantization": (served.quantization.value, Quantization.none.value),
        "kv_cache_dtype": (served.kv_cache_dtype.value, KVCacheDtype.auto.value),
        "adapter": (served.adapter, None),
        "speculative.method": (served.speculative.method.value, SpeculationMethod.none.value),
    }
    for name, (value, usual) in untried.items():
        if value != usual:
            yield Problem(key=f"{key}.{name}", value=value, remedy=_untried(family, usual))


def _untried(family: str, usual: object) -> str:
    return f"it has not been tried with {family}: use {json.dumps(usual)}".replace('"', "")
