"""What AgentFlow's settings demand of a run, checked before anything starts: roles, limits, tools."""

from agentic.agentflow.config import AgentFlowConfig
from agentic.agentflow.reward import judge_settings
from agentic.agentflow.tools.toolbox import tool_problems
from vime.config import RunConfig
from vime.errors import Problem

PLANNER = "planner"


def all_problems(method: AgentFlowConfig, config: RunConfig) -> list[Problem]:
    """Every role has a server, the trained model serves the planner alone, limits are possible, tools have what they need."""
    judge = judge_settings(method)
    judging = judge.problems(config, key="method.roles.judge") if judge is not None else []
    roles = [*_role_problems(method, config), *_fallback_problems(method)]
    return [*_limit_problems(method), *roles, *judging, *tool_problems(config)]


def _limit_problems(method: AgentFlowConfig) -> list[Problem]:
    names = ("max_steps", "max_evaluation_steps", "max_planner_tokens", "max_frozen_tokens", "max_rollout_tokens")
    found = [
        Problem(key=f"method.{name}", value=getattr(method, name), remedy="give at least 1")
        for name in names
        if getattr(method, name) < 1
    ]
    if method.max_seconds <= 0:
        found.append(Problem(key="method.max_seconds", value=method.max_seconds, remedy="give more than 0 seconds"))
    return found


def _fallback_problems(method: AgentFlowConfig) -> list[Problem]:
    if "base_generator" in method.tools:
        return []
    remedy = "unknown tools fall back to base_generator: add method.tools.base_generator.model"
    return [Problem(key="method.tools", value=", ".join(method.tools), remedy=remedy)]


def role_map(method: AgentFlowConfig) -> dict[str, str | None]:
    """The served model of every role by the role's name."""
    roles = method.roles
    return {
        PLANNER: roles.planner,
        "executor": roles.executor,
        "verifier": roles.verifier,
        "generator": roles.generator,
        "coder": roles.coder,
        "judge": roles.judge,
    }


def _role_problems(method: AgentFlowConfig, config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    served = config.serving.models
    for role, name in role_map(method).items():
        key = f"method.roles.{role}"
        if name is None:
            continue
        if name not in served:
            remedy = f"no model is served under this name (there are: {', '.join(served)}): give one of these, "
            found.append(Problem(key=key, value=name, remedy=f"{remedy}or describe it as serving.models.{name}"))
        elif role == PLANNER and not served[name].trained:
            found.append(Problem(key=key, value=name, remedy="the planner is what is trained: give the trained model, actor"))
        elif role != PLANNER and served[name].trained and not method.trained_roles_allowed:
            remedy = f"is the trained model, so the {role} would change with the planner"
            remedy += " and could be talked into approving it" if role == "judge" else ""
            remedy += ": give a frozen model, or say method.trained_roles_allowed=true"
            found.append(Problem(key=key, value=name, remedy=remedy))
    return found
