"""Bad settings of adapters are refused with the remedy, before anything starts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from vime.config import (
    AlgorithmName,
    Family,
    LoraDelivery,
    LoraTarget,
    Mode,
    ModelConfig,
    RunConfig,
    ServedModelConfig,
    WeightTransfer,
)
from vime.memory.processes import adapter_parameters
from vime.model.adapter_folder import describe, read_shape, start_problems
from vime.model.size import adapted_shapes, num_trained_parameters
from vime.preflight.rules import lora

MODEL = ModelConfig(
    name="small",
    checkpoint="maker/small",
    num_layers=2,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
)


def config_of(**options: Any) -> RunConfig:
    config = RunConfig(model=MODEL)
    for name, value in options.items():
        setattr(config.trainer.lora, name, value)
    return config


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of an adapter for the small model; `change` changes its tensors and its configuration."""

    def make(change: Callable[[dict[str, Any], dict[str, Any]], Any] | None = None, *, rank: int = 4) -> Path:
        config = config_of(rank=rank, alpha=8.0).trainer.lora
        tensors = {}
        for layer in range(MODEL.num_layers):
            for target, (outputs, inputs) in adapted_shapes(MODEL, LoraTarget).items():
                part = "self_attn" if target.value in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
                name = f"base_model.model.model.layers.{layer}.{part}.{target.value}.lora_"
                tensors |= {f"{name}A.weight": np.zeros((rank, inputs)), f"{name}B.weight": np.zeros((outputs, rank))}
        description = describe(config, base=MODEL.checkpoint)
        if change is not None:
            change(tensors, description)
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        (tmp_path / "adapter_config.json").write_text(json.dumps(description))
        return tmp_path

    return make


def test_a_fitting_adapter_has_no_problems(write: Callable[..., Path]) -> None:
    config = config_of(rank=4, alpha=8.0, start=str(write()))
    assert lora.start(config) == lora.targets(config) == []
    assert read_shape(write()).shapes == adapted_shapes(MODEL, LoraTarget)


def test_of_the_adapters_of_embedding_and_head_tensor_parallel_ranks_share_what_is_of_words() -> None:
    config = config_of(rank=4, targets=[LoraTarget.embed_tokens, LoraTarget.lm_head])
    assert num_trained_parameters(MODEL, config.trainer) == adapter_parameters(config) == 2 * 4 * (MODEL.vocab_size + 8)
    config.trainer.tensor_parallel_size = config.trainer.pipeline_parallel_size = 2
    assert adapter_parameters(config) == 2 * 4 * (MODEL.vocab_size / 2 + 8)


def test_an_adapter_of_embedding_and_head_is_read_also_with_the_matrices_that_peft_writes_beside_it(
    write: Callable[..., Path],
) -> None:
    vocabulary, hidden = MODEL.vocab_size, MODEL.hidden_size
    beside = {name: np.zeros((4, 4)) for name in ("model.embed_tokens.base_layer.weight", "lm_head.base_layer.weight")}

    def add(tensors: dict[str, Any], _: Any) -> None:
        new = {"model.embed_tokens.lora_embedding_A": (4, vocabulary), "model.embed_tokens.lora_embedding_B": (hidden, 4)}
        new |= {"lm_head.lora_A.weight": (4, hidden), "lm_head.lora_B.weight": (vocabulary, 4)}
        tensors |= {f"base_model.model.{name}": np.zeros(shape) for name, shape in new.items()}
        tensors |= {f"base_model.model.{name}": tensor for name, tensor in beside.items()}

    config = config_of(rank=4, alpha=8.0, start=str(write(add)), targets=list(LoraTarget))
    assert lora.start(config) == lora.targets(config) == []
    config.model = replace(MODEL, vocab_size=vocabulary + 1)
    (problem,) = lora.start(config)
    assert "adapts embed_tokens with 8 outputs" in problem.remedy


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"rank": 2}, "trainer.lora.rank", "has 4: use that"),
        ({"alpha": 16.0}, "trainer.lora.alpha", "has 8.0: use that"),
        (
            {"targets": [LoraTarget.q_proj]},
            "trainer.lora.targets",
            "has [q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]",
        ),
        ({"rank": 0}, "trainer.lora.start", "needs trainer.lora.rank"),
    ],
)
def test_an_adapter_of_another_shape_is_refused(write: Callable[..., Path], options: Any, key: str, words: str) -> None:
    problems = lora.start(config_of(**{"rank": 4, "alpha": 8.0, "start": str(write())} | options))
    assert [(problem.key, words in problem.remedy) for problem in problems] == [(key, True)]


def other_base(_: Any, description: dict[str, Any]) -> None:
    description["base_model_name_or_path"] = "maker/large"


def drop_one(tensors: dict[str, Any], _: Any) -> None:
    del tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]


def wider(tensors: dict[str, Any], _: Any) -> None:
    for name in tensors:
        if "q_proj.lora_B" in name:
            tensors[name] = np.zeros((10, 4))


def one_layer(tensors: dict[str, Any], _: Any) -> None:
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


def head(tensors: dict[str, Any], _: Any) -> None:
    tensors["base_model.model.lm_head.lora_A.weight"] = np.zeros((4, 8))


def router(tensors: dict[str, Any], _: Any) -> None:
    tensors["base_model.model.model.layers.0.mlp.gate.lora_A.weight"] = np.zeros((4, 8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_base, "was trained on maker/large, and the run's model.checkpoint is maker/small"),
        (drop_one, "does not adapt the same matrices in all layers"),
        (wider, "adapts q_proj with 10 outputs and 8 inputs, and small has (8, 8)"),
        (one_layer, "adapts 1 layers, and small has 2"),
        (router, "adapts base_model.model.model.layers.0.mlp.gate.lora_A.weight; supported are q_proj"),
        (head, "does not adapt the same matrices"),
        (lambda _, description: description.update(use_dora=True), "has use_dora=True, which is not supported"),
        (lambda _, description: description.update(peft_type="IA3"), "is an adapter of the kind IA3"),
        (lambda _, description: description.update(r=8), "with rank 8, as its adapter_config.json says"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_with_the_reason(write: Callable[..., Path], change: Any, words: str) -> None:
    config = config_of(rank=4, alpha=8.0, start=str(write(change)))
    (problem,) = start_problems(config.trainer.lora, MODEL)
    assert problem.key == "trainer.lora.start" and words in problem.remedy


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    (problem,) = lora.start(config_of(rank=4, start=str(tmp_path / "none")))
    assert "holds no adapter in PEFT's format" in problem.remedy


def test_targets_exist_and_are_named_once() -> None:
    assert "at least one" in lora.targets(config_of(rank=4, targets=[]))[0].remedy
    assert "once" in lora.targets(config_of(rank=4, targets=[LoraTarget.q_proj, LoraTarget.q_proj]))[0].remedy
    config = config_of(rank=4)
    config.model.num_experts = 4
    try:
        assert "use [q_proj,k_proj,v_proj,o_proj]" in lora.targets(config)[0].remedy
    finally:
        config.model.num_experts = 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trainer.lora.rank": 0}, "all weights are trained"),
        ({"deterministic": True}, "needs merge"),
        ({"cluster.weight_transfer": WeightTransfer.nccl}, "cluster.weight_transfer=nccl sends whole weights"),
        ({"trainer.lora.rank": 1024}, "ranks up to 512"),
        ({"serving.models.actor.urls": ["http://10.0.0.2:8000"]}, "servers given by urls"),
        (
            {"trainer.lora.targets": [LoraTarget.q_proj, LoraTarget.lm_head], "model.family": Family("qwen2")},
            "no adapter of lm_head for the family qwen2: use merge",
        ),
        ({"trainer.lora.targets": [LoraTarget.embed_tokens], "model.family": Family("qwen3")}, None),
        ({}, None),
    ],
)
def test_adapters_alone_are_sent_only_where_they_can_be(change: dict[str, Any], words: str | None) -> None:
    config = config_of(rank=4)
    config.model = replace(MODEL)
    config.serving.lora = LoraDelivery.adapter
    for key, value in change.items():
        *path, name = key.split(".")
        target: Any = config
        for part in path:
            target = target[part] if isinstance(target, dict) else getattr(target, part)
        setattr(target, name, value)
    problems = lora.delivery(config)
    assert [str(words) in problem.remedy for problem in problems] == ([True] if words else [])
    config.serving.lora = LoraDelivery.merge
    assert not lora.delivery(config)


def test_adapters_of_served_models_are_read_before_a_server_starts(write: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of()
    config.serving.models["expert"] = ServedModelConfig(adapter=str(write()))
    assert lora.served(config) == []
    config.serving.models["expert"].adapter = str(tmp_path / "none")
    assert [problem.key for problem in lora.served(config)] == ["serving.models.expert.adapter"]
    config.serving.models["expert"] = ServedModelConfig(adapter=str(write()), urls=["http://10.0.0.2:8000"])
    assert "servers given by urls" in lora.served(config)[0].remedy
    config.serving.models = {"actor": ServedModelConfig(trained=True, adapter=str(write()))}
    assert "trainer.lora.start" in lora.served(config)[0].remedy
    config.mode = Mode.eval
    assert lora.served(config) == []


def several(**changes: Callable[[RunConfig], Any]) -> RunConfig:
    """A run of two adapters; each change is made to the second, or with `all_` before its name to both and to the run."""
    run, adapters = config_of(rank=4), {name: config_of(rank=4) for name in ("one", "two")}
    for config in (run, *adapters.values()):
        config.model = replace(MODEL)
        config.serving.lora = LoraDelivery.adapter
        config.serving.models["actor"] = ServedModelConfig(trained=True)
        config.serving.models["judge"] = ServedModelConfig(checkpoint="maker/judge")
    for name, change in changes.items():
        for config in (run, *adapters.values()) if name.startswith("all_") else (adapters["two"],):
            change(config)
    run.adapters = adapters
    return run


def test_adapters_may_differ_in_what_they_learn() -> None:
    def learn(config: RunConfig) -> None:
        config.trainer.lr, config.trainer.lora.rank, config.seed, config.rollout.num_prompts = 1e-3, 2, 7, 3
        config.algorithm.name = AlgorithmName.rloo

    assert lora.together(several(two=learn)) == [] and lora.together(config_of(rank=4)) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("trainer.lora.rank", 0, "at least 1"),
        ("serving.lora", LoraDelivery.merge, "those of one adapter"),
        ("algorithm.name", AlgorithmName.sft, "a run of one adapter"),
        ("model.checkpoint", "maker/other", "it is maker/small for one"),
        ("trainer.recompute", True, "give it for the whole run"),
        ("serving.models.actor.num_replicas", 2, "it is 1 for one"),
        ("serving.models.judge.checkpoint", "maker/other", "it is maker/judge for one"),
    ],
)
def test_adapters_share_the_model_and_its_servers(key: str, value: Any, words: str) -> None:
    def change(config: RunConfig) -> None:
        *path, name = key.split(".")
        owner: Any = config
        for part in path:
            owner = owner[part] if isinstance(owner, dict) else getattr(owner, part)
        setattr(owner, name, value)

    (problem,) = lora.together(several(two=change))
    assert problem.key == f"adapters.two: {key.removesuffix('.name')}" and words in problem.remedy


def test_a_model_that_only_later_adapters_ask_is_the_same_for_these() -> None:
    run = several()
    run.adapters["three"] = replace(run.adapters["two"], serving=replace(run.adapters["two"].serving))
    for name, checkpoint in (("two", "maker/one"), ("three", "maker/other")):
        own = run.adapters[name].serving
        own.models = own.models | {"late": ServedModelConfig(checkpoint=checkpoint)}
    (problem,) = lora.together(run)
    assert problem.key == "adapters.three: serving.models.late.checkpoint" and "it is maker/one for two" in problem.remedy


def test_several_adapters_are_only_trained_and_do_not_take_turns_with_their_servers() -> None:
    (problem,) = lora.together(several(all_=lambda config: setattr(config, "mode", Mode.eval)))
    assert problem.key == "adapters" and "leave them out" in problem.remedy

    def turns(config: RunConfig) -> None:
        config.cluster.gpus_per_node = config.cluster.num_trainer_gpus = config.cluster.num_server_gpus = 1
        config.cluster.colocated = True

    (problem,) = lora.together(several(all_=turns))
    assert "GPUs of their own" in problem.remedy
