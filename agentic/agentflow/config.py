"""AgentFlow's settings and their requirements of a run; importing this module registers `schema/method/agentflow` with Hydra."""

from dataclasses import asdict, dataclass, field
from enum import Enum

from hydra.core.config_store import ConfigStore

from agentic.agentflow.instructions import without_instructions
from agentic.agentflow.tools.config import ToolConfig
from vime.config import Aggregation, Credit, MethodConfig, PromptStyle, RunConfig
from vime.config.ranges import Count, Positive
from vime.errors import Problem
from vime.grading.judge import JudgeConfig
from vime.types import Prompt, Sample

PLANNER, ANALYST, JUDGE = "planner", "analyst", "judge"


class TrainedTurns(Enum):
    """The planner's turns that are trained: the choices of the next step (the paper), or the initial plan as well."""

    next_step = "next_step"
    plan_and_next_step = "plan_and_next_step"


@dataclass(kw_only=True, slots=True)
class RolesConfig:
    """The served model of each role, by its name in `serving.models`. All but the first two are frozen and may share one."""

    planner: str = "actor"
    """Model that plans, chooses each next step, and is trained."""
    analyst: str = "actor"
    """Model that analyses the question before the first step: the planner, or a frozen one as in the original code."""
    executor: str = "base"
    """Model that turns a step into a call of a tool."""
    verifier: str = "base"
    """Model that decides whether a further step is needed."""
    generator: str = "base"
    """Model that writes the final answer."""
    coder: str | None = "base"
    """Model that writes the programs of the tool python_coder; null runs the tool's query itself as the program."""
    judge: str | None = "base"
    """Model that decides about answers that no rule can compare; null scores those answers 0."""


@dataclass(kw_only=True, slots=True)
class JudgingConfig:
    """Limits of the judge."""

    max_tokens: Count = 512
    """Longest reply of the judge."""
    timeout_seconds: Positive = 25.0
    """Time limit of one call; all `num_tries` calls must fit into `rollout.reward_timeout_seconds`."""
    num_tries: Count = 2
    """Number of times that the judge is asked, until a reply has a readable verdict."""
    alone: bool = False
    """Let the judge decide about every answer, as in the paper, instead of those that no rule can compare."""


@dataclass(kw_only=True, slots=True)
class AgentFlowConfig(MethodConfig):
    """AgentFlow's loop and limits (arXiv 2510.05592, section 4.1).

    The factor 1/T of equation 5 is `algorithm.aggregation=nested`, which also divides the KL term; `credit=split`, which divides
    the advantage alone, is what slime-agentic does.
    """

    name: str = "agentflow"
    generate: str = "agentic.agentflow.generate.generate"
    reward: str = "agentic.agentflow.reward.reward"
    eval_log: str | None = "agentic.agentflow.eval_log.eval_log"
    rehearsal: str | None = "agentic.agentflow.rehearsal.AgentFlowRehearsal"
    single_turn: str = "agentic.agentflow.single_turn.generate"
    credit: Credit = Credit.share
    roles: RolesConfig = field(default_factory=RolesConfig)
    """The served model of each role."""
    tools: dict[str, ToolConfig] = field(default_factory=dict)
    """Tools by name: built-in ones (agentic/agentflow/tools) and your own (`path`). base_generator must be among them."""
    judging: JudgingConfig = field(default_factory=JudgingConfig)
    """Limits of the judge."""
    trained_roles_allowed: bool = False
    """Allow the trained model to play frozen roles or the judge too; these roles then change as it is trained."""
    trained_turns: TrainedTurns = TrainedTurns.next_step
    """Planner turns that are trained: only the choices of the next step (next_step), or the initial plan too
    (plan_and_next_step)."""
    keep_instructions: bool = False
    """Leave the data set's text on the form of an answer in the question, like DAPO's "Answer:" line; the prompts ask for a box
    themselves."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the models of the laptop task."""
    max_steps: Count = 3
    """Most steps of a training rollout."""
    max_evaluation_steps: Count = 10
    """Most steps of an evaluation rollout."""
    max_planner_tokens: Count = 2048
    """Most tokens of one planner turn."""
    max_frozen_tokens: Count = 2048
    """Most tokens of one turn of the executor, the verifier or the generator."""
    max_rollout_tokens: Count = 131_072
    """Tokens sampled by the planner in one rollout after which no further step begins."""
    max_seconds: Positive = 500.0
    """Time after which no further step begins; the generator then answers from the steps taken so far."""

    def judge_config(self) -> JudgeConfig | None:
        """The judge with its limits, or None if no model judges."""
        if self.roles.judge is None:
            return None
        limits = self.judging
        return JudgeConfig(
            model=self.roles.judge,
            max_tokens=limits.max_tokens,
            timeout_seconds=limits.timeout_seconds,
            num_tries=limits.num_tries,
        )

    def question_of(self, sample: Sample) -> str:
        """The question as the roles are given it."""
        return sample.question if self.keep_instructions else without_instructions(sample.question)

    @property
    def plans_itself(self) -> bool:
        """True if the planner analyses the question, and this turn is one of the rollout's sequences."""
        return self.roles.analyst == self.roles.planner

    def identities(self, prompt: Prompt) -> list[str]:
        """The question without the data sets' texts on the form of its answer."""
        return [" ".join(without_instructions(prompt.question).lower().split())]

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that every role is served, only the planner is trained, and the needs of each tool are met."""
        from agentic.agentflow.tools.toolbox import tool_problems  # it imports much that `--help` does without

        judge = self.judge_config()
        judging = judge.problems(config, key=f"method.roles.{JUDGE}") if judge is not None else []
        if self.judging.alone and judge is None:
            remedy = "there is no judge: use method.roles.judge, or let rules decide"
            judging = [Problem(key="method.judging.alone", value=True, remedy=remedy)]
        roles = [*_role_problems(self, config), *_fallback_problems(self), *_credit_problems(self, config)]
        return [*roles, *judging, *tool_problems(config)]


def _fallback_problems(method: AgentFlowConfig) -> list[Problem]:
    if "base_generator" in method.tools:
        return []
    remedy = "base_generator answers where the planner names an unknown tool: add method.tools.base_generator.model"
    return [Problem(key="method.tools", value=", ".join(method.tools), remedy=remedy)]


def _credit_problems(method: AgentFlowConfig, config: RunConfig) -> list[Problem]:
    if config.algorithm.aggregation is not Aggregation.nested or method.credit is not Credit.split:
        return []
    remedy = "algorithm.aggregation=nested divides by the number of turns already: use share, or algorithm.aggregation=sample"
    return [Problem(key="method.credit", value=method.credit.value, remedy=remedy)]


def _role_problems(method: AgentFlowConfig, config: RunConfig) -> list[Problem]:
    found: list[Problem] = []
    if method.trained_turns is TrainedTurns.plan_and_next_step and not method.plans_itself:
        remedy = (
            f"the plan turn is trained, but {method.roles.analyst} plans: use method.roles.{ANALYST}={method.roles.planner}, or "
        )
        remedy += "train next_step alone"
        found.append(Problem(key="method.trained_turns", value=method.trained_turns.value, remedy=remedy))
    served = config.serving.models
    for role, name in asdict(method.roles).items():
        key = f"method.roles.{role}"
        if name is None:
            continue
        if name not in served:
            remedy = f"no model is served under this name (available: {', '.join(served)}): use one of these, "
            found.append(Problem(key=key, value=name, remedy=f"{remedy}or describe it as serving.models.{name}"))
        elif role == PLANNER and not served[name].trained:
            found.append(Problem(key=key, value=name, remedy="the planner is the trained role: use the trained model, actor"))
        elif role == ANALYST and method.plans_itself:
            continue
        elif role != PLANNER and served[name].trained and not method.trained_roles_allowed:
            remedy = f"is the trained model, so the {role} would change with the planner"
            remedy += " and could learn to approve its answers" if role == JUDGE else ""
            remedy += ": use a frozen model, or set method.trained_roles_allowed=true"
            found.append(Problem(key=key, value=name, remedy=remedy))
    return found


ConfigStore.instance().store(group="schema/method", name="agentflow", node=AgentFlowConfig)
