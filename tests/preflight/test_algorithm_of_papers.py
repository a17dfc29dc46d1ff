"""The objective of every preset and recipe is the one that its paper or reproduction is declared to have, and says its name."""

import dataclasses
from typing import Any

import pytest

from tests import chosen
from vime.config import (
    Aggregation,
    AlgorithmConfig,
    AlgorithmName,
    Baseline,
    Comparison,
    DistillationConfig,
    KLEstimator,
    Normalization,
    RunConfig,
    TeacherConfig,
)
from vime.preflight.compose import CONF, compose_run
from vime.preflight.plan.steps import summary
from vime.report.tables import header_lines

LOW_VAR: dict[str, Any] = {"kl_coefficient": 1e-3, "kl_estimator": KLEstimator.low_var_kl}
MEMAGENT: dict[str, Any] = {"name": AlgorithmName.paper, "normalization": Normalization.none, **LOW_VAR}
AGENTFLOW: dict[str, Any] = {"name": AlgorithmName.paper, "clip_high": 0.3, "aggregation": Aggregation.nested, **LOW_VAR}
TOOLORCHESTRA: dict[str, Any] = {
    "name": AlgorithmName.paper,
    "clip_high": 0.28,
    "dual_clip": 10.0,
    "kl_coefficient": 1e-4,
    "kl_estimator": KLEstimator.k2,
}
NO_KL: dict[str, Any] = {"kl_coefficient": 0.0}
GRPO: dict[str, Any] = {"name": AlgorithmName.grpo}
DAPO: dict[str, Any] = {"name": AlgorithmName.dapo, "clip_high": 0.28}
DISTILLATION: dict[str, Any] = {
    "name": AlgorithmName.on_policy_distillation,
    "distillation": DistillationConfig(teachers={"teacher": TeacherConfig()}),
}
SFT: dict[str, Any] = {"name": AlgorithmName.sft}
SLIME_AGENTIC: dict[str, Any] = {**AGENTFLOW, "name": AlgorithmName.slime_agentic, "aggregation": Aggregation.sample}
SEARCH_R1: dict[str, Any] = {"name": AlgorithmName.paper, **LOW_VAR}
CODING: dict[str, Any] = {"name": AlgorithmName.paper, "kl_coefficient": 1e-3, "kl_estimator": KLEstimator.k3}
CLIPPED: dict[str, Any] = {**SLIME_AGENTIC, "advantage": "agentic.toolorchestra.advantage.clipped"}
RETOOL: dict[str, Any] = {"name": AlgorithmName.paper, "clip_high": 0.28, "dual_clip": 10.0, **NO_KL}
MULTI_AGENT: dict[str, Any] = {
    "name": AlgorithmName.paper,
    "clip_high": 0.28,
    "aggregation": Aggregation.rollout,
    **NO_KL,
}
SELF_PLAY: dict[str, Any] = {
    "name": AlgorithmName.custom,
    "baseline": Baseline.running,
    "comparison": Comparison.seat,
    "normalization": Normalization.none,
    "kl_coefficient": 0.2,
    "kl_estimator": KLEstimator.k3,
}
OF_METHODS: dict[str, dict[str, Any]] = {
    "memagent": MEMAGENT,
    "agentflow": AGENTFLOW,
    "toolorchestra": TOOLORCHESTRA,
    "coding": CODING,
    "retool": RETOOL,
    "search_r1": SEARCH_R1,
    "multi_agent": MULTI_AGENT,
    "harbor": GRPO,
}
OF_TINY: dict[str, dict[str, Any]] = {
    "memagent": GRPO,
    "agentflow": {**AGENTFLOW, "aggregation": Aggregation.sample, **NO_KL},
    "toolorchestra": {**TOOLORCHESTRA, **NO_KL},
    "coding": GRPO,
    "retool": GRPO,
    "search_r1": GRPO,
    "multi_agent": MULTI_AGENT,
    "harbor": GRPO,
}
OF_EXPERIMENTS: dict[str, dict[str, Any]] = {
    **{f"memagent_{name}": MEMAGENT for name in ("paper_7b", "paper_14b", "scaffold_32b")},
    **{f"memagent_single_turn_{size}": MEMAGENT for size in ("7b", "14b", "32b")},
    **{f"memagent_released_{name}": MEMAGENT for name in ("7b", "14b", "slime_agentic_7b")},
    **{f"memagent_slime_agentic_{size}": SLIME_AGENTIC for size in ("7b", "14b")},
    "memagent_slime_agentic_tiny": {**SLIME_AGENTIC, **NO_KL},
    "memagent_paper_tiny": {**MEMAGENT, **NO_KL},
    **{f"memagent_{name}": GRPO for name in ("tiny_lengths", "tiny_lora", "tiny_adapters", "endpoint", "four_models")},
    **{f"memagent_lora_{model}": MEMAGENT for model in ("qwen2.5_7b", "qwen3_8b", "qwen3_4b_24gb", "qwen3_30b_a3b")},
    "memagent_tiny_distillation": DISTILLATION,
    "agentflow_paper": AGENTFLOW,
    **{f"agentflow_{name}": SLIME_AGENTIC for name in ("slime_agentic", "released_slime_agentic_7b")},
    **{
        f"toolorchestra_{name}_8b": TOOLORCHESTRA for name in ("paper", "released", "unseen_tools", "preferences", "other_prices")
    },
    **{f"toolorchestra_{name}slime_agentic_8b": CLIPPED for name in ("", "released_")},
    **{f"toolorchestra_tiny_{name}": OF_TINY["toolorchestra"] for name in ("prefers_quick", "prices_swapped")},
    **{f"coding_swe_{model}": CODING for model in ("qwen3_8b", "qwen3_30b_a3b")},
    **{f"retool_{name}": RETOOL for name in ("paper_32b", "verl_7b", "slime_4b")},
    "coding_tiny_short_context": GRPO,
    **{f"{name}_sft": SFT for name in ("memagent_tiny", "agentflow_tiny", "agentflow_tiny_frozen", "coding_tiny", "retool_tiny")},
    **{f"search_r1_qwen2.5_{model}": SEARCH_R1 for model in ("3b", "3b_instruct", "7b", "7b_instruct")},
    "search_r1_format_qwen2.5_3b": SEARCH_R1,
    "search_r1_tiny_no_retrieval": GRPO,
    "search_r1_tiny_sft": SFT,
    **{f"smollm2_{name}": GRPO for name in ("sst2", "sst2_lora", "adapters", "trec", "asdiv", "pydantic_ai", "smolagents")},
    "smollm2_reasoning_gym": DAPO,
    **{f"database_tiny{name}": GRPO for name in ("", "_mcp", "_strands")},
    "database_tiny_sft": SFT,
    "nim_tiny": SELF_PLAY,
    "tictactoe_tiny": {**SELF_PLAY, "kl_coefficient": 0.1},
    "games_tiny_sft": SFT,
    "tutorial": GRPO,
    "strands_qwen3_8b": RETOOL,
    **{f"multi_agent_{name}": MULTI_AGENT for name in ("qwen3_30b_a3b", "qwen3_4b", "frozen_selector", "tiny_one_solver")},
    "multi_agent_tiny_sft": SFT,
    **{f"toolorchestra_tiny{name}_sft": SFT for name in ("", "_junior", "_senior")},
}
MODELS = ["llama3.1-8b", *sorted({file.stem for file in (CONF / "preset").glob("*/*.yaml") if "_" not in file.parent.name})]
"""Models with presets of their own, and one without."""


def composed(*words: str) -> RunConfig:
    return compose_run([*words, "mode=plan"]).config


def declared(values: dict[str, Any]) -> AlgorithmConfig:
    """GRPO (the defaults) with what a paper does otherwise."""
    return dataclasses.replace(AlgorithmConfig(), **values)


@pytest.mark.parametrize("method", OF_METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_presets_objective_is_its_papers(method: str, model: str):
    config = composed(f"+method={method}", f"model={model}")
    assert config.algorithm == declared((OF_TINY if model == "tiny" else OF_METHODS)[method])
    assert config.rollout.filter is None


def test_every_experiment_is_declared():
    assert set(OF_EXPERIMENTS) == {file.stem for file in (CONF / "experiment").glob("*.yaml")}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", OF_EXPERIMENTS)
def test_a_recipes_objective_is_the_declared_one(experiment: str):
    assert composed(f"+experiment={experiment}").algorithm == declared(OF_EXPERIMENTS[experiment])


@pytest.mark.parametrize("experiment", chosen.parameters(OF_EXPERIMENTS, set(list(OF_EXPERIMENTS)[::2])))
@pytest.mark.slow
def test_another_name_replaces_all_of_a_recipes_objective(experiment: str):
    assert composed(f"+experiment={experiment}", "algorithm=grpo").algorithm == declared(GRPO)


def test_without_a_method_the_default_is_grpo():
    assert composed("method.generate=mine.generate").algorithm == declared(GRPO) == composed("algorithm=grpo").algorithm


@pytest.mark.parametrize(
    ("words", "name"), [([], "paper"), (["algorithm=grpo"], "grpo"), (["algorithm=slime_agentic"], "slime_agentic")]
)
def test_the_plan_and_the_first_lines_of_a_run_say_which_it_is(words: list[str], name: str):
    config = composed("+method=agentflow", "model=qwen2.5-7b", *words)
    config.mode = type(config.mode).train
    for lines in (summary(config), header_lines(config, CONF)):
        (line,) = [line for line in lines if "objective" in line]
        high = 1.2 if name == "grpo" else 1.3
        assert f"{name}: reward minus group mean, divided by group deviation; clipped token ratio 0.8 … {high}" in line
