"""Settings that cannot be reproducible are refused with `deterministic=true`, and allowed without."""

from typing import Any

import pytest

from vime.preflight.compose import compose_run
from vime.preflight.plan.steps import summary
from vime.preflight.rules.deterministic import repeatable
from vime.preflight.validation import find_problems

TINY = ["+method=memagent", "mode=plan"]


def keys(*words: str) -> set[str]:
    return {problem.key for problem in find_problems(compose_run([*TINY, *words]).config)}


def test_the_laptop_path_can_repeat_and_its_plan_says_so():
    assert keys("deterministic=true") == set()
    assert "repeatable" in summary(compose_run([*TINY, "deterministic=true"]).config)[0]
    assert "repeatable" not in summary(compose_run(TINY).config)[0]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["rollout.max_staleness=1"], "rollout.max_staleness"),
        (["rollout.num_oversampled_prompts=2"], "rollout.num_oversampled_prompts"),
        (["rollout.num_oversampled_samples_per_prompt=2"], "rollout.num_oversampled_samples_per_prompt"),
        (["rollout.filter=vime.algorithm.filter.dynamic_sampling"], "rollout.filter"),
        (["+serving.models.judge={urls: ['http://127.0.0.1:9/v1'], api: chat}"], "serving.models.judge.urls"),
        (["+serving.models.judge={urls: ['http://127.0.0.1:9']}"], "serving.models.judge.urls"),
        (
            ["+serving.models.base={checkpoint: x, vllm_args: {speculative_config: {method: ngram}}}"],
            "serving.models.base.vllm_args.speculative_config",
        ),
        (["+serving.models.base={checkpoint: x, quantization: fp8_per_channel}"], "serving.models.base.quantization"),
        (["serving.models.actor.speculative.method=ngram"], "serving.models.actor.speculative.method"),
        (["+serving.models.base={checkpoint: x, tensor_parallel_size: 2}"], "serving.models.base.tensor_parallel_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_depends_on_time_or_on_others_is_refused(words: list[str], key: str):
    assert key in keys("deterministic=true", *words)
    assert key not in keys(*words)


@pytest.mark.parametrize("name", ["producer", "group_function"])
def test_an_orchestration_of_ones_own_is_refused(name: str):
    config = compose_run([*TINY, "deterministic=true"]).config
    setattr(config.rollout, name, "my.orchestration")
    assert [problem.key for problem in repeatable(config)] == [f"rollout.{name}"]


def test_experts_are_refused_on_a_cpu_alone():
    shape: list[Any] = ["model.num_experts=4", "model.num_experts_per_token=2", "model.moe_intermediate_size=64"]
    assert "model.num_experts" in keys("deterministic=true", *shape)
    assert "model.num_experts" not in keys("deterministic=true", *shape, "cluster=one_node")


def test_measured_latency_is_refused():
    words = ["+method=toolorchestra", "mode=plan", "deterministic=true"]
    for latency, refused in (("measured", True), ("table", False)):
        config = compose_run([*words, f"method.shaping.latency={latency}"]).config
        assert ("method.shaping.latency" in {problem.key for problem in find_problems(config)}) is refused
