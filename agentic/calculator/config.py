"""The settings of word problems; importing this module registers `schema/method/calculator` with Hydra."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, RunConfig
from vime.config.ranges import Count, Natural
from vime.errors import Problem

PROMPT_TOKENS = 256
"""Tokens reserved for the examples (about 150) and the problem."""
RESULT_TOKENS = 16


@dataclass(kw_only=True, slots=True)
class CalculatorConfig(MethodConfig):
    """Turns that are lines of text, without a chat template: what a pretrained model of any kind can do after three examples."""

    name: str = "calculator"
    generate: str = "agentic.calculator.generate.generate"
    reward: str | None = "agentic.calculator.reward.reward"
    eval_log: str | None = "agentic.calculator.eval_log.eval_log"
    rehearsal: str | None = "agentic.calculator.rehearsal.CalculatorRehearsal"
    single_turn: str = "agentic.calculator.generate.single_turn"
    max_calculations: Natural = 3
    """Calculations before the answer; a further one ends the rollout."""
    max_turn_tokens: Count = 24
    """Most tokens of a line."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the examples, a problem and all lines fit into the context."""
        needed = PROMPT_TOKENS + (self.max_calculations + 1) * (self.max_turn_tokens + RESULT_TOKENS)
        reason = f"a problem and {self.max_calculations + 1} lines of method.max_turn_tokens={self.max_turn_tokens}"
        return self.context_problems(config, num_tokens=needed, reason=reason)


ConfigStore.instance().store(group="schema/method", name="calculator", node=CalculatorConfig)
