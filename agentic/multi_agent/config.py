"""The multi-agent method's settings; importing this module registers `schema/method/multi_agent` with Hydra."""

from dataclasses import dataclass
from enum import Enum

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, PromptStyle, RunConfig
from vime.config.ranges import Count, Natural, NonNegative
from vime.errors import Problem


class Role(str, Enum):
    """Who is asked, in the order of the stages."""

    solver = "solver"
    rewriter = "rewriter"
    selector = "selector"


class AnswerKind(str, Enum):
    """How the box of a solution is compared with the reference: as mathematics, or as text without its blanks."""

    maths = "maths"
    text = "text"


@dataclass(kw_only=True, slots=True)
class MultiAgentConfig(MethodConfig):
    """Solvers, rewriters and a selector on one problem; the defaults are those of slime's example."""

    name: str = "multi_agent"
    generate: str = "agentic.multi_agent.generate.generate"
    reward: str | None = "agentic.multi_agent.reward.reward"
    eval_log: str | None = "agentic.multi_agent.eval_log.eval_log"
    single_turn: str = "agentic.multi_agent.generate.single_turn"
    num_solvers: Count = 5
    """Solutions that are written independently of each other."""
    num_rewriters: Natural = 5
    """Solutions that are written after reading those of the solvers; with 0 the selector reads the solvers' own. The selector is
    left out where this leaves a single solution, so with 1 and 0 the method is one solver."""
    solver_model: str = "actor"
    """Served model of the solvers, by its name in `serving.models`; one role at least is played by the trained model."""
    rewriter_model: str = "actor"
    """Served model of the rewriters."""
    selector_model: str = "actor"
    """Served model of the selector."""
    solved_weight: NonNegative = 1.2
    """What all rewards of a rollout are multiplied by if the selected solution is right."""
    unsolved_weight: NonNegative = 0.8
    """The same if it is wrong, or if none is selected."""
    max_response_tokens: Count = 8192
    """Most tokens of one reply."""
    thinking: bool = True
    """Whether a reply must end its thinking with one `</think>`, which the solution follows. Without, it is the whole reply."""
    answer_kind: AnswerKind = AnswerKind.maths
    """How an answer is compared with the reference."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the laptop task."""

    @property
    def num_calls(self) -> dict[Role, int]:
        """Calls of each role in a rollout, if every stage has solutions to read."""
        candidates = self.num_rewriters or self.num_solvers
        return {Role.solver: self.num_solvers, Role.rewriter: self.num_rewriters, Role.selector: int(candidates > 1)}

    def model_of(self, role: Role) -> str:
        """Name of the model that plays a role."""
        return {Role.solver: self.solver_model, Role.rewriter: self.rewriter_model, Role.selector: self.selector_model}[role]

    def calls_per_rollout(self, config: RunConfig) -> int:
        """Calls of the trained model."""
        played = {name for name, model in config.serving.models.items() if model.trained}
        return sum(number for role, number in self.num_calls.items() if self.model_of(role) in played)

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that each role is served, that exactly one of their models is trained, and that replies can be read."""
        served, found = config.serving.models, list[Problem]()
        names = {role: self.model_of(role) for role, number in self.num_calls.items() if number}
        trained = next((name for name in names.values() if name in served and served[name].trained), None)
        for role, name in names.items():
            if name not in served:
                remedy = f"no model is served under this name (available: {', '.join(served)}): use one of these, "
                found.append(_problem(role, name, f"{remedy}or describe it as serving.models.{name}"))
            elif served[name].trained and name != trained:
                remedy = f"is trained, and so is {trained} in another role; a run trains one model: use {trained}, "
                found.append(_problem(role, name, f"{remedy}or set serving.models.{name}.trained=false"))
        if trained is None:
            remedy = "no role is played by the trained model: use actor for the solver, the rewriter or the selector"
            found.append(_problem(Role.solver, self.solver_model, remedy))
        elif served[trained].max_model_len <= self.max_response_tokens:
            remedy = f"leaves no room for a prompt beside method.max_response_tokens={self.max_response_tokens}: use more"
            key, length = f"serving.models.{trained}.max_model_len", served[trained].max_model_len
            found.append(Problem(key=key, value=length, remedy=remedy))
        if self.thinking and config.model.chat_template_args.get("enable_thinking") is False:
            remedy = "a solution is what follows the thinking: use true here, or method.thinking=false"
            found.append(Problem(key="model.chat_template_args.enable_thinking", value=False, remedy=remedy))
        return found


def _problem(role: Role, name: str, remedy: str) -> Problem:
    return Problem(key=f"method.{role.value}_model", value=name, remedy=remedy)


ConfigStore.instance().store(group="schema/method", name="multi_agent", node=MultiAgentConfig)
