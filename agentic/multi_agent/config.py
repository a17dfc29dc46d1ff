"""The multi-agent method's settings; importing this module registers `schema/method/multi_agent` with Hydra."""

from dataclasses import dataclass
from enum import Enum

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, PromptStyle, RunConfig
from vime.config.ranges import Count, Natural, NonNegative
from vime.errors import Problem


class Role(str, Enum):
    """Roles that are asked, in the order of the stages."""

    solver = "solver"
    rewriter = "rewriter"
    selector = "selector"


@dataclass(kw_only=True, slots=True)
class MultiAgentConfig(MethodConfig):
    """Solvers, rewriters and a selector on one problem; the defaults are those of slime's example."""

    name: str = "multi_agent"
    generate: str = "agentic.multi_agent.generate.generate"
    reward: str | None = "agentic.multi_agent.reward.reward"
    eval_log: str | None = "agentic.multi_agent.eval_log.eval_log"
    rehearsal: str | None = "agentic.multi_agent.rehearsal.MultiAgentRehearsal"
    single_turn: str = "agentic.multi_agent.generate.single_turn"
    num_solvers: Count = 5
    """Solutions that are written independently of each other."""
    num_rewriters: Natural = 5
    """Solutions that are written after reading those of the solvers; with 0 the selector reads the solvers' own. If only one
    solution is left, there is no selector, so with 1 solver and 0 rewriters the method is one solver."""
    solver_model: str = "actor"
    """Served model of the solvers, by its name in `serving.models`; one role at least is played by the trained model."""
    rewriter_model: str = "actor"
    """Served model of the rewriters."""
    selector_model: str = "actor"
    """Served model of the selector."""
    solved_weight: NonNegative = 1.2
    """Factor of all rewards of a rollout if the chosen solution is right."""
    unsolved_weight: NonNegative = 0.8
    """Factor of all rewards of a rollout if the chosen solution is wrong, or if none is chosen."""
    max_response_tokens: Count = 8192
    """Most tokens of one reply."""
    maths: bool = True
    """True if answers are compared as mathematics; otherwise as text without its blanks."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the laptop task."""

    def model_of(self, role: Role) -> str:
        """Name of the model that plays a role."""
        return {Role.solver: self.solver_model, Role.rewriter: self.rewriter_model, Role.selector: self.selector_model}[role]

    def calls(self) -> dict[Role, int]:
        """Calls of each role that is played, if every stage has solutions to read."""
        numbers = {Role.solver: self.num_solvers, Role.rewriter: self.num_rewriters}
        numbers[Role.selector] = int((self.num_rewriters or self.num_solvers) > 1)
        return {role: number for role, number in numbers.items() if number}

    def calls_per_rollout(self, config: RunConfig) -> int:
        """Calls of the trained model."""
        return sum(number for role, number in self.calls().items() if config.serving.models[self.model_of(role)].trained)

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that each role is served, that exactly one of their models is trained, and that it has room to read."""
        served = config.serving.models
        names = {f"method.{role.value}_model": self.model_of(role) for role in self.calls()}
        trained = [name for name in names.values() if name in served and served[name].trained]
        found = self.context_problems(config, num_tokens=self.max_response_tokens + 1, reason="a prompt and a longest reply")
        for key, name in names.items():
            if name not in served:
                remedy = f"no model has this name: use one of {', '.join(served)}, or describe it in serving.models"
                found.append(Problem(key=key, value=name, remedy=remedy))
            elif served[name].trained and name != trained[0]:
                remedy = f"is trained, and so is {trained[0]} in another role; a run trains one model: use {trained[0]}, "
                found.append(Problem(key=key, value=name, remedy=f"{remedy}or set serving.models.{name}.trained=false"))
        if not trained:
            remedy = "no role is played by the trained model: use actor for the solver, the rewriter or the selector"
            found.append(Problem(key="method.solver_model", value=self.solver_model, remedy=remedy))
        return found


ConfigStore.instance().store(group="schema/method", name="multi_agent", node=MultiAgentConfig)
