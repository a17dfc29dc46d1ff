"""Routing replay is refused, with its remedy, where there is nothing to replay or it would be wrong."""

from typing import Any

import pytest

from vime.config import (
    AlgorithmName,
    KLPlace,
    ModelConfig,
    OldLogprobs,
    RoutingReplay,
    RunConfig,
    ServedModelConfig,
    ServerGroupConfig,
    ServerRole,
    SpeculationMethod,
)
from vime.memory.tokens import batch_bytes, experts_bytes
from vime.preflight.plan.steps import replay as plan
from vime.preflight.rules.routing_replay import in_service, replay
from vime.serving.flags import endpoint_of, server_arguments, server_environment

KEY = "trainer.routing_replay"


def config_of(kind: RoutingReplay, **model: Any) -> RunConfig:
    shape: dict[str, Any] = {"num_layers": 3, "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32} | model
    config = RunConfig(model=ModelConfig(checkpoint="maker/experts", **shape))
    config.serving.models = {"actor": ServedModelConfig(trained=True)}
    config.trainer.routing_replay = kind
    return config


def problems(config: RunConfig) -> dict[str, str]:
    return {problem.key: problem.remedy for problem in replay(config)}


def test_the_servers_experts_can_be_replayed_as_they_are() -> None:
    assert not problems(config_of(RoutingReplay.rollout))
    assert not problems(config_of(RoutingReplay.none, num_experts=0))


@pytest.mark.parametrize("kind", [RoutingReplay.trainer, RoutingReplay.rollout])
def test_a_model_without_experts_has_nothing_to_replay(kind: RoutingReplay) -> None:
    assert "no experts" in problems(config_of(kind, num_experts=0))[KEY]


def test_the_trainers_pass_is_replayed_by_later_updates_only() -> None:
    config = config_of(RoutingReplay.trainer)
    assert "algorithm.old_logprobs=trainer" in problems(config)[KEY]
    config.algorithm.old_logprobs = OldLogprobs.trainer
    assert "trainer.num_updates_per_batch" in problems(config)[KEY]
    config.trainer.num_updates_per_batch = 2
    assert not problems(config)
    config.algorithm.kl_place, config.algorithm.kl_coefficient = KLPlace.reward, 0.1
    assert "algorithm.kl_place=loss" in problems(config)[KEY]


def test_a_router_must_not_be_recomputed_without_its_layer() -> None:
    config = config_of(RoutingReplay.rollout)
    config.trainer.megatron_args = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    assert not problems(config)
    config.trainer.megatron_args["recompute_modules"] = ["moe"]
    assert "trainer.recompute=true" in problems(config)["trainer.megatron_args.recompute_modules"]


def test_demonstrations_have_no_server() -> None:
    config = config_of(RoutingReplay.rollout)
    config.algorithm.name = AlgorithmName.sft
    assert "use none" in problems(config)[KEY]


def test_servers_that_cannot_report_experts_are_refused() -> None:
    config = config_of(RoutingReplay.rollout)
    actor = config.serving.models["actor"]
    actor.urls = ["http://127.0.0.1:8000"]
    actor.groups = {"first": ServerGroupConfig(role=ServerRole.prefill), "second": ServerGroupConfig(role=ServerRole.regular)}
    actor.vllm_args = {"enable-prefix-caching": False, "pipeline_parallel_size": 2, "speculative_config": {"method": "ngram"}}
    actor.speculative.method = SpeculationMethod.ngram
    wrong = ["urls", "speculative.method", "groups.first.role", *(f"vllm_args.{name}" for name in actor.vllm_args)]
    assert set(problems(config)) == {f"serving.models.actor.{name}" for name in wrong}
    config.cluster.gpus_per_node, config.deterministic = 8, True
    assert "speculative" not in "".join(problems(config))
    assert "deterministic=true" in problems(config)[KEY]


def test_a_service_has_no_experts_of_its_clients() -> None:
    assert [problem.key for problem in in_service(config_of(RoutingReplay.rollout))] == [KEY]
    assert not in_service(config_of(RoutingReplay.none))


@pytest.mark.parametrize("num_experts, size", [(8, 6), (255, 6), (256, 12)])
def test_the_plan_says_what_travels(num_experts: int, size: int) -> None:
    config = config_of(RoutingReplay.rollout, num_experts=num_experts)
    assert experts_bytes(config) == size
    assert f"3 layers × 2 in {size} bytes, {4 * size // 3} as text" in "".join(plan(config))
    plain = config_of(RoutingReplay.none, num_experts=num_experts)
    assert not plan(plain) and (batch_bytes(config) - batch_bytes(plain)) % size == 0 < batch_bytes(config) - batch_bytes(plain)


@pytest.mark.parametrize("kind", RoutingReplay)
@pytest.mark.parametrize("gpus", [0, 8])
def test_servers_report_experts_for_the_replay_of_rollouts_only(kind: RoutingReplay, gpus: int) -> None:
    config = config_of(kind)
    config.cluster.gpus_per_node = gpus
    actor, reports = config.serving.models["actor"], kind is RoutingReplay.rollout
    assert server_arguments(config, "actor", actor, number=0).get("enable_return_routed_experts", False) is reports
    environment = server_environment(config, actor, cpus=[], gpus=[0])
    assert ("VLLM_USE_V2_MODEL_RUNNER" in environment) is (reports and gpus > 0)
    assert endpoint_of(config, "actor").num_experts == (8 if reports else 0)
