"""The role map: every role has a server, the trained model serves the planner alone, tools have what they need."""

from dataclasses import replace

import pytest

from agentic.agentflow.config import AgentFlowConfig, JudgingConfig, RolesConfig, TrainedTurns
from agentic.agentflow.tools.config import ToolConfig
from vime.cluster.layout import world_size
from vime.cluster.placement import server_places, trainer_places
from vime.config import RunConfig, ServedModelConfig, ServingConfig
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.rules.numbers import ranges
from vime.preflight.validation import find_problems

SERVED = {"actor": ServedModelConfig(trained=True), "base": ServedModelConfig()}
LARGE = ["+method=agentflow", "model=qwen2.5-7b", "cluster=one_node", "mode=plan"]


def problems(**settings: object) -> dict[str, str]:
    """Remedies by key of a method with these settings, in a run that serves actor and base."""
    tools = {"base_generator": ToolConfig(model="base")}
    method = AgentFlowConfig(**{"tools": tools, **settings})  # type: ignore[arg-type]
    config = RunConfig(method=method, serving=ServingConfig(models=SERVED))
    return {problem.key: problem.remedy for problem in [*method.problems(config), *ranges(config)]}


def test_the_default_role_map_fits_an_actor_and_a_base_model():
    assert problems() == {}


def test_a_role_without_a_server_is_refused_with_the_names_there_are():
    found = problems(roles=RolesConfig(coder="coder"))
    assert "actor, base" in found["method.roles.coder"] and "serving.models.coder" in found["method.roles.coder"]


def test_a_judge_that_is_the_trained_model_must_be_said_to_be():
    found = problems(roles=RolesConfig(judge="actor"))
    assert "approve" in found["method.roles.judge"] and "trained_roles_allowed" in found["method.roles.judge"]
    assert problems(roles=RolesConfig(judge="actor"), trained_roles_allowed=True) == {}


@pytest.mark.parametrize("role", ["executor", "verifier", "generator", "coder"])
def test_frozen_roles_do_not_change_with_the_planner(role: str):
    assert set(problems(roles=replace(RolesConfig(), **{role: "actor"}))) == {f"method.roles.{role}"}


def test_a_frozen_planner_is_refused():
    assert "method.roles.planner" in problems(roles=RolesConfig(planner="base"))


def test_a_tool_without_its_endpoint_model_or_class_is_refused():
    tools = {"web_search": ToolConfig(), "base_generator": ToolConfig(), "telescope": ToolConfig()}
    found = problems(tools=tools)
    assert any(key.startswith("method.tools.web_search") for key in found)
    assert "method.tools.base_generator.model" in found and "method.tools.telescope" in found
    assert "method.tools" in problems(tools={})


@pytest.mark.parametrize("setting", ["max_steps", "max_planner_tokens", "max_rollout_tokens", "max_seconds", "max_frozen_tokens"])
def test_limits_of_nothing_are_refused(setting: str):
    assert set(problems(**{setting: 0})) == {f"method.{setting}"}


def test_wrong_role_maps_on_the_command_line_are_all_told_before_anything_starts():
    words = ["method.roles.coder=coder", "method.roles.judge=actor", "+method.tools.web_search.topk=2"]
    with pytest.raises(ConfigError) as raised:
        compose_run(["+method=agentflow", "mode=plan", *words], check=find_problems)
    keys = " ".join(problem.key for problem in raised.value.problems)
    for key in ("method.roles.coder", "method.roles.judge", "method.tools.web_search"):
        assert key in keys


def test_servers_stand_where_slime_agentic_has_them():
    config = compose_run(LARGE, check=find_problems).config
    gpus = {name: [place.gpus for place in places] for name, places in server_places(config).items()}
    assert gpus == {"actor": [(0, 1, 2, 3)], "coder": [(4, 5)], "base": [(6, 7)]}
    assert {name: model.port for name, model in config.serving.models.items()} == {"actor": 0, "coder": 30001, "base": 30000}
    ranks = [place.gpus for place in trainer_places(config, world_size(config.trainer))]
    assert ranks == [(0,), (1,), (2,), (3,)]


def test_one_switch_tells_the_papers_run_from_slime_agentics():
    paper, slime = (
        compose_run([f"+experiment={name}", "mode=plan"], check=find_problems).config
        for name in ("agentflow_paper", "agentflow_slime_agentic")
    )
    assert isinstance(paper.method, AgentFlowConfig) and isinstance(slime.method, AgentFlowConfig)
    assert (paper.method.trained_turns.value, slime.method.trained_turns.value) == ("next_step", "plan_and_next_step")
    assert (paper.rollout.num_prompts, paper.rollout.temperature, paper.method.max_steps) == (32, 0.5, 3)
    assert (slime.rollout.num_prompts, slime.rollout.temperature, slime.method.max_steps) == (8, 0.7, 5)


def test_frozen_servers_that_share_a_gpu_ask_for_no_more_than_it_has():
    words = ["+method=agentflow", "model=qwen2.5-0.5b", "mode=plan"]
    assert find_problems(compose_run(words).config) == []
    crowded = compose_run([*words, "serving.models.base.gpu_memory_utilization=0.6"]).config
    keys = [problem.key for problem in find_problems(crowded)]
    assert keys[0] == "serving.models.base.gpu_memory_utilization"
    assert keys[1:] == ["serving.models.actor.gpu_memory_utilization"], "nor is there room for the weights of a sync"


def test_an_analyst_is_the_planner_or_frozen_and_plans_that_are_trained_are_the_planners():
    assert problems(roles=RolesConfig(analyst="base")) == {}
    assert set(problems(roles=RolesConfig(analyst="nobody"))) == {"method.roles.analyst"}
    turns = {"roles": RolesConfig(analyst="base"), "trained_turns": TrainedTurns.plan_and_next_step}
    assert "base plans" in problems(**turns)["method.trained_turns"]


def test_a_judge_alone_and_an_average_that_divides_already_are_checked():
    assert problems(judging=JudgingConfig(alone=True)) == {}
    assert set(problems(judging=JudgingConfig(alone=True), roles=RolesConfig(judge=None))) == {"method.judging.alone"}
    words = ["+experiment=agentflow_paper", "mode=plan", "method.credit=split"]
    with pytest.raises(ConfigError, match="nested divides by the number of turns already"):
        compose_run(words, check=find_problems)
    compose_run([*words, "algorithm.name=custom", "algorithm.aggregation=sample"], check=find_problems)


def test_the_papers_run_has_a_search_and_a_frozen_analyst():
    config = compose_run(["+experiment=agentflow_paper", "mode=plan"], check=find_problems).config
    method = AgentFlowConfig.of(config)
    assert set(method.tools) == {"base_generator", "python_coder", "wikipedia_search"} and method.roles.analyst == "base"
    assert (
        method.tools["wikipedia_search"].endpoint == f"http://127.0.0.1:{config.retrieval.port}" and config.retrieval.is_started
    )
    assert not method.keep_instructions
