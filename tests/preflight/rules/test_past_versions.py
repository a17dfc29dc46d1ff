"""Earlier versions as another model's weights are refused, with the remedy, where its servers cannot take them."""

from typing import Any

import pytest

from vime.config import (
    AlgorithmName,
    LoraConfig,
    LoraDelivery,
    ModelConfig,
    PastVersionsConfig,
    Quantization,
    RunConfig,
    ServedModelConfig,
)
from vime.preflight.rules.past_versions import past_versions
from vime.serving.flags import server_arguments


def config_of(**opponent: Any) -> RunConfig:
    config = RunConfig(model=ModelConfig(checkpoint="maker/model"))
    opponent = {"past_versions": PastVersionsConfig(every=5)} | opponent
    config.serving.models = {"actor": ServedModelConfig(trained=True), "opponent": ServedModelConfig(**opponent)}
    return config


def problems(config: RunConfig) -> dict[str, str]:
    return {problem.key: problem.remedy for problem in past_versions(config)}


def test_an_opponent_has_the_trained_models_precision_and_starts_without_a_checkpoint():
    config = config_of()
    assert not problems(config)
    models = config.serving.models
    own, trained = (server_arguments(config, name, models[name], number=0, awaits_weights=True) for name in ("opponent", "actor"))
    same = ("dtype", "load_format", "model", "weight_transfer_config")
    assert {name: own[name] for name in same} == {name: trained[name] for name in same}


@pytest.mark.parametrize(
    ("opponent", "key"),
    [
        ({"urls": ["http://127.0.0.1:1"]}, "urls"),
        ({"checkpoint": "maker/other"}, "checkpoint"),
        ({"adapter": "folder"}, "adapter"),
        ({"quantization": Quantization.fp8_per_channel}, "quantization"),
        ({"trained": True}, "past_versions.every"),
    ],
)
def test_an_opponent_with_weights_of_its_own_is_refused(opponent: dict[str, Any], key: str):
    assert f"serving.models.opponent.{key}" in problems(config_of(**opponent))
    none = PastVersionsConfig(every=0)
    assert not problems(config_of(**opponent, past_versions=none)), "without past versions it may have them"


def test_adapters_and_integers_alone_cannot_be_brought_to_an_opponent():
    config = config_of()
    config.trainer.lora = LoraConfig(rank=8)
    assert not problems(config)
    config.serving.lora = LoraDelivery.adapter
    assert "serving.lora=merge" in problems(config)["serving.models.opponent.past_versions.every"]
    config.serving.lora = LoraDelivery.merge
    config.serving.models["actor"].quantization = Quantization.int8
    assert "8-bit integers" in problems(config)["serving.models.opponent.past_versions.every"]
    config.algorithm.name = AlgorithmName.sft
    assert not problems(config)
