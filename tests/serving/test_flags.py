"""Command lines and environments of servers and routers."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import save_file

from vime.config import (
    Family,
    LoraConfig,
    LoraDelivery,
    LoraTarget,
    Mode,
    ModelConfig,
    RunConfig,
    ServedModelConfig,
    ServerRole,
    ServingConfig,
)
from vime.inside_vllm.pillow_images import take_pillow
from vime.inside_vllm.plugin import register
from vime.memory.processes import server_memory
from vime.model.adapter_folder import RANKS
from vime.model.families import family_of
from vime.preflight.rules import model_shape, serving
from vime.serving.flags import server_arguments, server_environment, to_flags
from vime.serving.router import router_command
from vime.weights.payload import AWAITS_ADAPTER, NUM_SYNCED_SERVERS


def test_dictionaries_become_flags():
    arguments = {"block_size": 32, "enforce_eager": True, "log_stats": False, "x": None, "urls": ["a", "b"], "c": {"d": 1}}
    expected = ["--block-size", "32", "--enforce-eager", "--no-log-stats", "--urls", "a", "b", "--c", '{"d": 1}']
    assert to_flags(arguments) == expected


def test_the_users_vllm_args_win_however_they_are_spelled():
    model = ServedModelConfig(vllm_args={"block-size": 64, "dtype": "bfloat16"})
    arguments = server_arguments(RunConfig(), "actor", model, number=0)
    assert arguments["block_size"] == 64
    assert arguments["dtype"] == "bfloat16"
    assert "block-size" not in arguments


def test_replicas_have_seeds_of_their_own():
    model = ServedModelConfig()
    seeds = {server_arguments(RunConfig(seed=5), "actor", model, number=index)["seed"] for index in range(3)}
    assert seeds == {5, 6, 7}


def test_a_server_never_has_more_positions_than_the_trained_model():
    config = RunConfig(model=ModelConfig(max_position_embeddings=512))
    assert server_arguments(config, "actor", ServedModelConfig(), number=0)["max_model_len"] == 512
    other = ServedModelConfig(checkpoint="other/model")
    assert server_arguments(config, "judge", other, number=0)["max_model_len"] == 8192


@pytest.mark.parametrize(
    ("vllm_args", "load_format"),
    [
        ({}, "dummy"),
        ({"load-format": "auto"}, "auto"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "dummy"),
        ({"speculative_config": {"method": "eagle3", "model": "draft"}}, None),
    ],
)
def test_a_server_that_awaits_weights_reads_no_checkpoint(vllm_args: dict, load_format: str | None):
    model = ServedModelConfig(trained=True, vllm_args=vllm_args)
    arguments = server_arguments(RunConfig(), "actor", model, number=0, awaits_weights=True)
    assert arguments.get("load_format") == load_format
    arguments = server_arguments(RunConfig(), "actor", model, number=0)
    assert arguments.get("load_format") in (None, "auto"), "an evaluation needs the checkpoint"


def test_servers_of_the_trained_model_may_return_the_logprobs_that_a_run_asks_for():
    config = RunConfig()
    for number, wanted in ((0, None), (19, None), (20, 21), (64, 65)):  # one more is asked for, and 20 are the default
        config.rollout.num_logprobs = number
        arguments = server_arguments(config, "actor", ServedModelConfig(trained=True), number=0)
        assert arguments.get("max_logprobs") == wanted
        assert "max_logprobs" not in server_arguments(config, "judge", ServedModelConfig(), number=0)


def test_a_server_that_gets_adapters_has_the_base_and_room_for_one_of_them():
    config = RunConfig(serving=ServingConfig(lora=LoraDelivery.adapter))
    config.trainer.lora = LoraConfig(rank=12, targets=[LoraTarget.q_proj, LoraTarget.o_proj])
    model = ServedModelConfig(trained=True)
    arguments = server_arguments(config, "actor", model, number=0, awaits_weights=True)
    assert arguments["max_lora_rank"] == 16 and arguments["lora_target_modules"] == ["q_proj", "o_proj"]
    assert "load_format" not in arguments and AWAITS_ADAPTER in server_environment(config, model, cpus=[], gpus=[])
    for other in (ServedModelConfig(), replace(model, trained=False)):
        assert "enable_lora" not in server_arguments(config, "judge", other, number=0)
    config.serving.lora = LoraDelivery.merge
    assert server_arguments(config, "actor", model, number=0, awaits_weights=True)["load_format"] == "dummy"
    assert AWAITS_ADAPTER not in server_environment(config, model, cpus=[], gpus=[])


@pytest.mark.parametrize("is_tied", [True, False])
def test_servers_of_merged_adapters_have_two_matrices_where_embedding_and_head_differ(is_tied: bool):
    config = RunConfig()
    config.model.tie_word_embeddings = is_tied
    config.trainer.lora = LoraConfig(rank=4, targets=[LoraTarget.q_proj, LoraTarget.lm_head])
    model = ServedModelConfig(trained=True, vllm_args={"hf_overrides": {"head_dtype": "float32"}})
    untied = {"tie_word_embeddings": False} if is_tied else {}
    assert server_arguments(config, "actor", model, number=0)["hf_overrides"] == {**untied, "head_dtype": "float32"}
    whole = server_memory(config, model)["weights"]
    for change in ("targets", "lora", "mode"):
        other = deepcopy(config)
        if change == "targets":
            other.trainer.lora.targets = [LoraTarget.q_proj]
        elif change == "lora":
            other.serving.lora = LoraDelivery.adapter
        else:
            other.mode = Mode.eval
        assert server_arguments(other, "actor", model, number=0)["hf_overrides"] == {"head_dtype": "float32"}, change
        assert (server_memory(other, model)["weights"] < whole) is is_tied


def test_the_families_whose_vocabulary_takes_adapters_are_those_of_vllm():
    from vllm.model_executor.models import ModelRegistry

    take_pillow()
    classes = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
    classes |= {"qwen3_moe": "Qwen3MoeForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM"}
    classes["gpt_oss"] = "GptOssForCausalLM"
    assert classes.keys() == {family.value for family in Family}
    found = {family: ModelRegistry._try_load_model_cls(name) for family, name in classes.items()}
    takes = {family: {"embed_tokens", "lm_head"} <= set(getattr(cls, "embedding_modules", {})) for family, cls in found.items()}
    assert takes == {family: family_of(family).serves_vocabulary for family in classes}


def test_the_ranks_are_those_of_vllm():
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == RANKS


def test_without_a_gpu_servers_get_their_cores_and_no_warm_up():
    config = RunConfig()
    arguments = server_arguments(config, "actor", ServedModelConfig(gpu_memory_utilization=0.05), number=0)
    assert arguments["enforce_eager"] and arguments["kv_cache_memory_bytes"] > 0
    environment = server_environment(config, ServedModelConfig(), cpus=[1], gpus=[])
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert "libgomp" in (environment["LD_PRELOAD"] or "")
    assert environment[NUM_SYNCED_SERVERS] == "1"
    config.serving.models["actor"].num_replicas = 3
    config.serving.models["judge"] = ServedModelConfig(num_replicas=2)
    environment = server_environment(config, ServedModelConfig(), cpus=[1], gpus=[])
    assert environment[NUM_SYNCED_SERVERS] == "3", "servers of a frozen model load nothing"


@pytest.mark.parametrize("vocabulary, reserved", [(1024, "1"), (80_000, "0")])
def test_a_large_model_that_is_alone_on_a_cpu_has_all_cores(vocabulary: int, reserved: str, tmp_path: Path):
    config = RunConfig()
    config.model.vocab_size = vocabulary  # 128 channels, and a head of its own
    environment = server_environment(config, ServedModelConfig(), cpus=[], gpus=[])
    assert environment.get("VLLM_CPU_NUM_OF_RESERVED_CPU", "1") == reserved
    environment = server_environment(config, ServedModelConfig(), cpus=[0], gpus=[])
    assert "VLLM_CPU_NUM_OF_RESERVED_CPU" not in environment, "it has been given its cores"
    for number in range(2):
        save_file({"weight": np.zeros((vocabulary, 64), np.float16)}, tmp_path / f"{number}.safetensors")
    config = RunConfig()
    environment = server_environment(config, ServedModelConfig(checkpoint=str(tmp_path)), cpus=[], gpus=[])
    assert environment.get("VLLM_CPU_NUM_OF_RESERVED_CPU", "1") == reserved


def test_with_gpus_servers_see_only_theirs():
    config = RunConfig()
    config.cluster.gpus_per_node = 8
    environment = server_environment(config, ServedModelConfig(), cpus=[], gpus=[2, 3])
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "enforce_eager" not in server_arguments(config, "actor", ServedModelConfig(), number=0)


def test_router_args_win_over_the_quick_failover():
    config = ServingConfig(router_args={"retry_max_retries": 2}, router_policy="round_robin")
    command = router_command(config, urls={ServerRole.regular: ["http://a", "http://b"]})
    assert command[command.index("--retry-max-retries") + 1] == "2"
    assert command[command.index("--policy") + 1] == "round_robin"
    assert command[command.index("--worker-urls") + 1 :][:2] == ["http://a", "http://b"]


def test_prefill_and_decode_servers_pass_their_cache_and_the_router_knows_which_is_which():
    config, roles = RunConfig(), (ServerRole.prefill, ServerRole.decode)
    made = [server_arguments(config, "actor", ServedModelConfig(), number=0, role=role) for role in roles]
    assert [found["kv_transfer_config"]["kv_role"] for found in made] == ["kv_producer", "kv_consumer"]
    environment = server_environment(config, ServedModelConfig(), cpus=[], gpus=[], role=ServerRole.prefill, address="10.0.0.7")
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"
    urls = {ServerRole.prefill: ["http://a", "http://b"], ServerRole.decode: ["http://c"]}
    command = " ".join(router_command(ServingConfig(), urls=urls))
    assert command.endswith("--vllm-pd-disaggregation --prefill http://a --prefill http://b --decode http://c")
    assert "--worker-urls" not in command


def test_the_plugin_can_be_loaded_twice_and_every_transport_imported():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    register()
    register()
    engines = {name: WeightTransferEngineFactory._registry[name]() for name in ("shm", "vime_ipc", "vime_nccl", "vime_gloo")}
    assert all(hasattr(engine, "weight_report") for engine in engines.values())


YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}


def test_scaled_rotary_embeddings_reach_the_trained_model_and_what_shares_its_checkpoint_with_the_length_they_allow():
    config = RunConfig(model=ModelConfig(checkpoint="a/b", max_position_embeddings=512, rope_parameters=YARN))
    for model in (ServedModelConfig(trained=True), ServedModelConfig(checkpoint="a/b")):
        arguments = server_arguments(config, "actor", model, number=0)
        assert arguments["hf_overrides"] == {"rope_parameters": YARN, "max_position_embeddings": 512}
    assert "hf_overrides" not in server_arguments(config, "judge", ServedModelConfig(checkpoint="c/d"), number=0)


def test_a_frozen_model_has_rotary_embeddings_of_its_own_and_the_context_that_they_allow():
    config = RunConfig(model=ModelConfig(checkpoint="a/b", max_position_embeddings=128))
    model = ServedModelConfig(checkpoint="a/b", rope_parameters=YARN, vllm_args={"hf_overrides": {"head_dtype": "float32"}})
    arguments = server_arguments(config, "long", model, number=0)
    assert arguments["max_model_len"] == 512
    assert arguments["hf_overrides"].keys() == {"rope_parameters", "max_position_embeddings", "head_dtype"}
    assert server_arguments(config, "base", ServedModelConfig(checkpoint="a/b"), number=0)["max_model_len"] == 128


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"rope_type": "longrope"}, "rope_type"),
        ({"factor": None}, "factor"),
        ({"attention_factor": 1.2}, "attention_factor"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_type": "default"}, "rope_type"),
    ],
)
def test_incomplete_or_unknown_scaling_is_refused_by_field(wrong: dict, key: str):
    model = ModelConfig(max_position_embeddings=512, rope_parameters=YARN | wrong)
    served = {"long": ServedModelConfig(rope_parameters=YARN | wrong)}
    config = RunConfig(model=model, serving=ServingConfig(models=served))
    assert [problem.key for problem in model_shape.rotary_embeddings(config)] == [f"model.rope_parameters.{key}"]
    assert [p.key for p in serving.rotary_embeddings(config)] == [f"serving.models.long.rope_parameters.{key}"]


def test_more_positions_than_the_scaling_allows_are_refused():
    config = RunConfig(model=ModelConfig(max_position_embeddings=513, rope_parameters=YARN))
    (problem,) = model_shape.rotary_embeddings(config)
    assert problem.key == "model.max_position_embeddings" and "512" in problem.remedy
