"""ReTool's settings; importing this module registers `schema/method/retool` with Hydra."""

from dataclasses import dataclass
from enum import Enum

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, Mode, PromptStyle, RunConfig
from vime.config.ranges import Count, Positive
from vime.errors import Problem


class RewardStyle(str, Enum):
    """Rules for the score of an answer."""

    paper = "paper"
    """1 if the last box is mathematically equal to the reference, else -1."""
    verl = "verl"
    """1 if the last box of the final 100 characters is literally the reference; else -1, and 0.1 more per call, at most -0.6."""
    slime = "slime"
    """Like `verl`, but a wrong answer starts at -1.1 and gains 0.05 per call."""


@dataclass(kw_only=True, slots=True)
class ReToolConfig(MethodConfig):
    """ReTool (arXiv 2504.11536): limits of a response and of the programs in it, and the reward of an answer."""

    name: str = "retool"
    generate: str = "agentic.retool.generate.generate"
    reward: str | None = "agentic.retool.reward.reward"
    eval_log: str | None = "agentic.retool.eval_log.eval_log"
    rehearsal: str | None = "agentic.retool.rehearsal.ReToolRehearsal"
    single_turn: str = "agentic.retool.generate.single_turn"
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the laptop task."""
    interpreter: bool = True
    """True if programs are run; without, the model reasons in words alone, which is the paper's text-based baseline."""
    max_response_tokens: Count = 16384
    """Maximum number of tokens of a response, including the output of programs."""
    max_calls: Count = 16
    """Most programs of a response; it ends if the model begins another one."""
    call_seconds: Positive = 30.0
    """Wall-clock time of one program."""
    output_characters: Count = 400
    """Characters of a program's output that the model is shown; the middle of a longer one is left out."""
    reward_style: RewardStyle = RewardStyle.paper
    """The rule for the score of an answer."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that prompt and response fit into the trained model's context, and that this machine can run workspaces."""
        reason = f"a prompt of a token and method.max_response_tokens={self.max_response_tokens}"
        found = self.context_problems(config, num_tokens=1 + self.max_response_tokens, reason=reason)
        if self.interpreter and config.mode is not Mode.plan:
            from vime.agent.workspace import workspace_problem

            if problem := workspace_problem():
                found.append(Problem(key="method.interpreter", value=True, remedy=problem))
        return found


ConfigStore.instance().store(group="schema/method", name="retool", node=ReToolConfig)
