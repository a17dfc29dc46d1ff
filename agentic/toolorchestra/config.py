"""ToolOrchestra's settings and their requirements of a run; importing this module registers `schema/method/toolorchestra`."""

import json
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

from agentic.toolorchestra.settings import (
    EndpointConfig,
    ExpertConfig,
    LatencySource,
    LimitsConfig,
    PreferenceConfig,
    RandomizationConfig,
    RewardConfig,
    ToolsConfig,
)
from agentic.toolorchestra.tau2_splits import SPLITS, num_shared
from vime.config import AlgorithmName, Credit, DatasetConfig, MethodConfig, Mode, ModelAPI, PromptStyle, RunConfig
from vime.config.ranges import NonNegative
from vime.errors import Problem
from vime.types import Prompt

TAU2_ROWS = "agentic.toolorchestra.tau2.rows"
TRAINING_ROWS = "agentic.toolorchestra.training_data.rows"


@dataclass(kw_only=True, slots=True)
class ToolOrchestraConfig(MethodConfig):
    """ToolOrchestra (arXiv 2511.21689): tools, experts and their prices, preferences, limits, the reward."""

    name: str = "toolorchestra"
    generate: str = "agentic.toolorchestra.generate.generate"
    reward: str = "agentic.toolorchestra.reward.reward"
    group_reward: str | None = "agentic.toolorchestra.reward.group_reward"
    eval_log: str | None = "agentic.toolorchestra.eval_log.eval_log"
    rehearsal: str | None = "agentic.toolorchestra.rehearsal.ToolOrchestraRehearsal"
    single_turn: str = "agentic.toolorchestra.single_turn.generate"
    credit: Credit = Credit.share
    experts: dict[str, ExpertConfig] = field(default_factory=dict)
    """Experts by the alias under which the orchestrator knows them."""
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    """Expert aliases that each tool offers."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    """The user's preferences: accuracy, cost, latency, certain experts."""
    shaping: RewardConfig = field(default_factory=RewardConfig)
    """The reward of a rollout, and the rollouts that are left out of training."""
    randomization: RandomizationConfig = field(default_factory=RandomizationConfig)
    """Changes at random from question to question."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Limits of rollouts, expert calls and texts."""
    orchestrator_dollars_per_million_input_tokens: NonNegative = 0.0
    """Price of a million tokens of the orchestrator's prompts."""
    orchestrator_dollars_per_million_output_tokens: NonNegative = 0.0
    """Price of a million tokens that the orchestrator samples."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the models of the laptop task."""
    parser: str = "hermes"
    """vLLM's tool-call parser for replies of the orchestrator and of experts."""
    customer: str | None = None
    """Served model that plays the customer of the built-in shop; null answers by the task's script."""
    tau2_user: EndpointConfig = field(default_factory=EndpointConfig)
    """Model that plays τ²-bench's user."""
    tau2_judge: EndpointConfig = field(default_factory=EndpointConfig)
    """Model that judges τ²-bench tasks whose reward depends on assertions about the conversation."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the settings fit together and that the run serves the models that they name.

        `mode=plan` leaves out checks that depend on the machine: a sandbox, the package tau2.
        """
        found = [*self.tools.problems(self.experts), *self.preference.problems(self.experts)]
        found += [*_served_problems(self, config), *_tool_problems(self, config), *_baseline_problems(config)]
        found += _tau2_problems(config)
        if config.deterministic and self.shaping.latency is LatencySource.measured:
            remedy = "measured times differ from run to run, which deterministic=true forbids: use table"
            found.append(Problem(key="method.shaping.latency", value=self.shaping.latency.value, remedy=remedy))
        return found if config.mode is Mode.plan else [*found, *_machine_problems(self, config)]

    def identities(self, prompt: Prompt) -> list[str]:
        """The number of a task of τ²-bench or ToolScale, because many of their users say the same; the data of a task of the
        shop; otherwise the question."""
        about = prompt.metadata
        if "domain" in about and "task_id" in about:
            return [f"{about['domain']} task {about['task_id']} of tau2-bench"]
        if about.get("category") == "func_call" and about.get("eid"):
            return [str(about["eid"])]
        if "task" in about:
            return [json.dumps(about["task"], sort_keys=True)]
        return MethodConfig.identities(self, prompt)


def _served_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    """Experts, customer and judge are served, and none of them is the trained model."""
    asked = {f"method.experts.{alias}.model": expert.model for alias, expert in method.experts.items()}
    judge = method.shaping.judge
    asked |= {key: name for key, name in (("method.customer", method.customer), ("method.shaping.judge", judge)) if name}
    found: list[Problem] = []
    for key, name in asked.items():
        if name not in config.serving.models:
            remedy = f"no model is served under this name (available: {', '.join(config.serving.models)}): use one of these, "
            found.append(Problem(key=key, value=name, remedy=f"{remedy}or describe it as serving.models.{name}"))
        elif config.serving.models[name].trained:
            remedy = "is the trained model, which would change during the run: use a frozen model"
            found.append(Problem(key=key, value=name, remedy=remedy))
    return found if judge is None else [*found, *method.shaping.judge_config(judge).problems(config, key="method.shaping.judge")]


def _tool_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    """Questions can be answered, and searches have a retrieval service."""
    found: list[Problem] = []
    if not method.tools.answer and config.algorithm.name is not AlgorithmName.sft:
        remedy = "a question is answered by the tool answer: give it at least one expert"
        found.append(Problem(key="method.tools.answer", value=[], remedy=remedy))
    if method.tools.search and not config.retrieval.is_there:
        remedy = "the tool search needs the retrieval service: set retrieval.corpus, retrieval.generator or retrieval.url, or "
        remedy += "leave this list empty"
        found.append(Problem(key="method.tools.search", value=method.tools.search, remedy=remedy))
    return found


def _baseline_problems(config: RunConfig) -> list[Problem]:
    """Baselines of the scaffold return token ids, because the orchestrator's calls are read from its tokens."""
    found: list[Problem] = []
    for row in config.evaluation.rows:
        name = row.partition("@")[2]
        if name in config.serving.models and config.serving.models[name].api is ModelAPI.chat and row.startswith("scaffold"):
            remedy = f"tool calls are read from tokens, which {name} does not return (api=chat): serve it with api=tokens"
            found.append(Problem(key="evaluation.rows", value=row, remedy=remedy))
    return found


def _tau2_problems(config: RunConfig) -> list[Problem]:
    """No task of τ²-bench is both trained and evaluated; `mode=plan` checks this as well, because the splits' sizes are known."""
    trained = config.data.train.generator_args
    if config.data.train.generator != TRAINING_ROWS or config.mode is Mode.eval:
        return []
    found: list[Problem] = []
    for position, dataset in enumerate(config.data.evaluation):
        if dataset.generator != TAU2_ROWS:
            continue
        split, domains = str(dataset.generator_args.get("split", "base")), dataset.generator_args.get("domains", [])
        shared = {name: num_shared("train", split, name) for name in domains if name in (trained.get("tau2_domains") or [])}
        if any(shared.values()):
            counts = ", ".join(f"{count} of the {SPLITS[split][name]} tasks of {name}" for name, count in shared.items())
            remedy = f"{counts} are trained (data.train.generator_args.tau2_domains): evaluate split=test, or train without them"
            key = f"data.evaluation.{position}.generator_args.split"
            found.append(Problem(key=key, value=split, remedy=remedy))
    return found


def _machine_problems(method: ToolOrchestraConfig, config: RunConfig) -> list[Problem]:
    """This machine can run sandboxes and τ²-bench where they are needed."""
    from vime.agent.sandbox import sandbox_problem
    from vime.preflight.rules.data import datasets

    found: list[Problem] = []
    if method.tools.enhance_reasoning and not config.sandbox.allow_unsandboxed and (problem := sandbox_problem()):
        found.append(Problem(key="method.tools.enhance_reasoning", value=method.tools.enhance_reasoning, remedy=problem))
    if any(map(_uses_tau2, datasets(config).values())):
        from agentic.toolorchestra.tau2 import why_absent

        if reason := why_absent():
            found.append(Problem(key="data", value=TAU2_ROWS, remedy=f"{reason}; or choose data without tau2"))
        if not method.tau2_user.model:
            remedy = "tau2 needs a model that plays the user: use one, like openai/user, and its tau2_user.arguments.api_base"
            found.append(Problem(key="method.tau2_user.model", value="", remedy=remedy))
    return found


def _uses_tau2(dataset: DatasetConfig) -> bool:
    source = dataset.generator_args.get("source") or {}
    return TAU2_ROWS in (dataset.generator, source.get("generator")) or bool(
        dataset.generator == TRAINING_ROWS and dataset.generator_args.get("tau2_domains")
    )


ConfigStore.instance().store(group="schema/method", name="toolorchestra", node=ToolOrchestraConfig)
