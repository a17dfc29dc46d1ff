"""AgentFlow's settings; importing this module makes them known to Hydra as `schema/method/agentflow`."""

from dataclasses import dataclass, field
from enum import Enum

from hydra.core.config_store import ConfigStore

from agentic.agentflow.tools.config import ToolConfig
from vime.config import Credit, MethodConfig, PromptStyle, RunConfig
from vime.errors import Problem


class TrainedTurns(Enum):
    """Which of the planner's turns are trained: the choices of a next step (the paper), or its analysis as well."""

    next_step = "next_step"
    plan_and_next_step = "plan_and_next_step"


@dataclass(kw_only=True, slots=True)
class RolesConfig:
    """The served model of each role (a name in `serving.models`); all but the planner are frozen and may share one."""

    planner: str = "actor"
    executor: str = "base"
    verifier: str = "base"
    generator: str = "base"
    """Writes the final answer, and answers for the tool base_generator."""
    coder: str | None = "base"
    """Writes the programs of the tool python_coder; None takes its queries as programs."""
    judge: str | None = "base"
    """Decides about answers that no rule can compare; None leaves those at 0."""


@dataclass(kw_only=True, slots=True)
class JudgingConfig:
    """Limits of the judge."""

    max_tokens: int = 512
    timeout_seconds: float = 25.0
    """One call; all of them must fit into `rollout.reward_timeout_seconds`."""
    num_tries: int = 2
    """Calls until one has a readable verdict."""


@dataclass(kw_only=True, slots=True)
class AgentFlowConfig(MethodConfig):
    """The paper's loop and limits (arXiv 2510.05592, section 4.1); `credit=split` is the 1/T of its equation 5."""

    name: str = "agentflow"
    generate: str = "agentic.agentflow.generate.generate"
    reward: str = "agentic.agentflow.reward.reward"
    eval_log: str | None = "agentic.agentflow.eval_log.eval_log"
    single_turn: str = "agentic.agentflow.single_turn.generate"
    credit: Credit = Credit.split
    roles: RolesConfig = field(default_factory=RolesConfig)
    tools: dict[str, ToolConfig] = field(default_factory=dict)
    """By name: the built-in ones of `tools/`, and your own by path; base_generator is always among them."""
    judging: JudgingConfig = field(default_factory=JudgingConfig)
    trained_roles_allowed: bool = False
    """Whether frozen roles and the judge may be served by the trained model, which then changes under them."""
    trained_turns: TrainedTurns = TrainedTurns.next_step
    prompt_style: PromptStyle = PromptStyle.full
    max_steps: int = 3
    """Steps of a rollout in training."""
    max_evaluation_steps: int = 10
    max_planner_tokens: int = 2048
    """Longest turn of the planner."""
    max_frozen_tokens: int = 2048
    """Longest turn of executor, verifier and generator."""
    max_rollout_tokens: int = 131_072
    """Sampled tokens of the planner's turns, after which no further step begins."""
    max_seconds: float = 500.0
    """Time after which no further step begins and the answer is written from what there is."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Every role has a server, the trained one serves the planner alone, and limits are possible."""
        from agentic.agentflow.rules import all_problems  # it imports what `--help` does without

        return all_problems(self, config)


ConfigStore.instance().store(group="schema/method", name="agentflow", node=AgentFlowConfig)
