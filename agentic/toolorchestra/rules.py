"""What ToolOrchestra's settings demand of a run, checked before anything starts: experts, services, weights, limits."""

from dataclasses import fields

from agentic.toolorchestra.config import LatencySource, ToolOrchestraConfig
from vime.agent.sandbox import sandbox_problem
from vime.config import AlgorithmName, DatasetConfig, Mode, ModelAPI, RunConfig
from vime.errors import Problem
from vime.grading.judge import JudgeConfig
from vime.preflight.rules.data import datasets

TAU2_ROWS = "agentic.toolorchestra.tau2.rows"
TRAINING_ROWS = "agentic.toolorchestra.training_data.rows"


def all_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    """Every problem of the method's settings; what only this machine can tell is not asked by `mode=plan`."""
    found = [*_expert_problems(method, config), *_tool_problems(method, config), *_weight_problems(method)]
    found += [*_limit_problems(method), *_served_problems(method, config), *_baseline_problems(config)]
    if config.deterministic and method.shaping.latency is LatencySource.measured:
        remedy = "deterministic=true: how long calls take differs from run to run; give table"
        found.append(Problem(key="method.shaping.latency", value=method.shaping.latency.value, remedy=remedy))
    return found if config.mode is Mode.plan else [*found, *_machine_problems(method, config)]


def _expert_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    served = config.serving.models
    for alias, expert in method.experts.items():
        key = f"method.experts.{alias}"
        if expert.model not in served:
            remedy = f"no model is served under this name (there are: {', '.join(served)}): give one of these, or describe it as "
            found.append(Problem(key=f"{key}.model", value=expert.model, remedy=f"{remedy}serving.models.{expert.model}"))
        elif served[expert.model].trained:
            remedy = "is the trained model, so the expert would change with the orchestrator: give a frozen model"
            found.append(Problem(key=f"{key}.model", value=expert.model, remedy=remedy))
        for name in ("dollars_per_million_input_tokens", "dollars_per_million_output_tokens", "seconds"):
            if not 0 <= getattr(expert, name) < float("inf"):
                found.append(Problem(key=f"{key}.{name}", value=getattr(expert, name), remedy="give 0 or more"))
    return found


def _tool_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    lists: dict[str, list[str]] = {field.name: getattr(method.tools, field.name) for field in fields(method.tools)}
    for tool, aliases in lists.items():
        for alias in aliases:
            if alias not in method.experts:
                remedy = f"there is no expert {alias} (there are: {', '.join(method.experts) or 'none'}): describe it as "
                found.append(Problem(key=f"method.tools.{tool}", value=alias, remedy=f"{remedy}method.experts.{alias}"))
        if len(set(aliases)) < len(aliases):
            found.append(Problem(key=f"method.tools.{tool}", value=aliases, remedy="name each alias once"))
    if not method.tools.answer and config.algorithm.name is not AlgorithmName.sft:
        remedy = "questions are answered by the tool answer: give it at least one expert"
        found.append(Problem(key="method.tools.answer", value=[], remedy=remedy))
    if method.tools.search and not config.retrieval.is_there:
        remedy = "the tool search needs the retrieval service: give retrieval.corpus, retrieval.generator or retrieval.url, or "
        remedy += "leave this list empty"
        found.append(Problem(key="method.tools.search", value=method.tools.search, remedy=remedy))
    return found


def _weight_problems(method: ToolOrchestraConfig) -> list[Problem]:
    preference, shaping = method.preference, method.shaping
    weights = {"accuracy": preference.accuracy, "cost": preference.cost, "latency": preference.latency}
    weights |= {f"tools.{alias}": weight for alias, weight in preference.tools.items()}
    found = [
        Problem(key=f"method.preference.{name}", value=weight, remedy="give 0 to 1: cheaper and quicker count as more")
        for name, weight in weights.items()
        if not 0 <= weight <= 1
    ]
    found += [
        Problem(key=f"method.preference.tools.{alias}", value=weight, remedy="there is no such expert in method.experts")
        for alias, weight in preference.tools.items()
        if alias not in method.experts
    ]
    for name in ("dollars", "latency_seconds"):
        if not 0 < getattr(shaping, name) < float("inf"):
            found.append(Problem(key=f"method.shaping.{name}", value=getattr(shaping, name), remedy="give more than 0"))
    if not 0 <= shaping.share < 1:
        remedy = "give 0 or more and less than 1, so that right stays above wrong"
        found.append(Problem(key="method.shaping.share", value=shaping.share, remedy=remedy))
    if shaping.min_deviation < 0:
        found.append(Problem(key="method.shaping.min_deviation", value=shaping.min_deviation, remedy="give 0 or more"))
    return found


def _limit_problems(method: ToolOrchestraConfig) -> list[Problem]:
    found = [
        Problem(key=f"method.limits.{field.name}", value=getattr(method.limits, field.name), remedy="give more than 0")
        for field in fields(method.limits)
        if not getattr(method.limits, field.name) > 0
    ]
    if method.randomization.price_factor < 1:
        value = method.randomization.price_factor
        found.append(Problem(key="method.randomization.price_factor", value=value, remedy="give 1 (prices as they are) or more"))
    if method.randomization.num_aliases < 0:
        value = method.randomization.num_aliases
        found.append(Problem(key="method.randomization.num_aliases", value=value, remedy="give 0 (all) or more"))
    return found


def _served_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    """Customer and judge are served, and are not the trained model."""
    found: list[Problem] = []
    for key, name in (("method.customer", method.customer), ("method.shaping.judge", method.shaping.judge)):
        if name is None:
            continue
        if name not in config.serving.models:
            remedy = f"no model is served under this name (there are: {', '.join(config.serving.models)})"
            found.append(Problem(key=key, value=name, remedy=remedy))
        elif config.serving.models[name].trained:
            found.append(Problem(key=key, value=name, remedy="is the trained model, which could talk it over: give a frozen one"))
    if method.shaping.judge is not None:
        found += JudgeConfig(model=method.shaping.judge).problems(config, key="method.shaping.judge")
    return found


def _baseline_problems(config: RunConfig) -> list[Problem]:
    """The orchestrator's calls are read from its tokens, which an endpoint with a chat API does not show."""
    found: list[Problem] = []
    for row in config.evaluation.rows:
        name = row.partition("@")[2]
        if name in config.serving.models and config.serving.models[name].api is ModelAPI.chat and row.startswith("scaffold"):
            remedy = f"{name} shows no tokens (api=chat), and tool calls are read from tokens: serve it with api=tokens"
            found.append(Problem(key="evaluation.rows", value=row, remedy=remedy))
    return found


def _machine_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    if method.tools.enhance_reasoning and not config.sandbox.allow_unsandboxed and (problem := sandbox_problem()):
        found.append(Problem(key="method.tools.enhance_reasoning", value=method.tools.enhance_reasoning, remedy=problem))
    if any(map(_uses_tau2, datasets(config).values())):
        from agentic.toolorchestra.tau2 import why_absent

        if reason := why_absent():
            found.append(Problem(key="data", value=TAU2_ROWS, remedy=f"{reason}; or choose data without tau2"))
        if not method.tau2_user.model:
            remedy = "tau2 needs a model that plays the user, like openai/user with tau2_user.arguments.api_base"
            found.append(Problem(key="method.tau2_user.model", value="", remedy=remedy))
    return found


def _uses_tau2(dataset: DatasetConfig) -> bool:
    return dataset.generator == TAU2_ROWS or bool(
        dataset.generator == TRAINING_ROWS and dataset.generator_args.get("tau2_domains")
    )
