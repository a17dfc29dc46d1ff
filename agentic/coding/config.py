"""The coding agent's settings; importing this module registers `schema/method/coding` with Hydra."""

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

from agentic.coding.grading import GradingConfig
from agentic.coding.task import INSTANCE
from vime.config import Credit, MethodConfig, Mode, PromptStyle, RunConfig
from vime.config.ranges import Count, Natural, Positive
from vime.errors import Problem
from vime.types import Prompt

OWN = "own"
"""The agent of `agent.py`; every other one is a program (`programs.py`)."""


@dataclass(kw_only=True, slots=True)
class CodingLimits:
    """Limits of one rollout."""

    turns: Count = 50
    """Replies of the agent."""
    explorer_turns: Natural = 15
    """Replies of a sub-agent; 0 offers no sub-agents."""
    turn_tokens: Count = 4096
    """Tokens of one reply."""
    context_tokens: Count = 24576
    """The agent's conversation is replaced by a summary when it is longer than this."""
    seconds: Positive = 1500.0
    """The agent's own time; no reply is asked for after it. An agent that is a program is ended."""
    command_seconds: Positive = 60.0
    """Wall-clock time of one command."""
    result_characters: Count = 16000
    """Characters of one result that the agent is shown; the middle of a longer one is left out."""


@dataclass(kw_only=True, slots=True)
class CodingConfig(MethodConfig):
    """A coding agent: it changes a repository in a workspace of its own, and hidden tests judge its patch."""

    name: str = "coding"
    generate: str = "agentic.coding.generate.generate"
    reward: str | None = "agentic.coding.reward.reward"
    eval_log: str | None = "agentic.coding.eval_log.eval_log"
    rehearsal: str | None = "agentic.coding.rehearsal.CodingRehearsal"
    single_turn: str = "agentic.coding.single_turn.generate"
    credit: Credit = Credit.share
    agent: str = OWN
    """The agent: the method's own (own), a program that `make agents` installs (claude_code, codex), or one of yours: a
    function, as FILE.py:NAME or MODULE.NAME, that is given these settings and returns an agentic.coding.programs.Program."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the laptop task."""
    limits: CodingLimits = field(default_factory=CodingLimits)
    """Limits of one rollout."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    """Settings for the grading of a patch."""
    single_turn_tokens: Count = 4096
    """Most tokens of the reply in the single-turn baseline."""
    single_turn_characters: Count = 60000
    """Characters of the repository that the single-turn baseline is shown."""

    def identities(self, prompt: Prompt) -> list[str]:
        """The name of a task, and its statement, which several collections may hold under names of their own."""
        return [str(prompt.metadata[INSTANCE]), " ".join(prompt.question.lower().split())]

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the context has room for a turn, and that this machine can run workspaces."""
        found = self.grading.problems(config)
        if self.agent == OWN:
            context, turn = self.limits.context_tokens, self.limits.turn_tokens
            reason = f"a conversation of method.limits.context_tokens={context} and a reply of method.limits.turn_tokens={turn}"
            found += self.context_problems(config, num_tokens=context + turn, reason=reason)
        return found if config.mode is Mode.plan else [*found, *_machine_problems(self)]


def _machine_problems(method: CodingConfig) -> list[Problem]:
    from vime.agent.workspace import workspace_problem

    problem = workspace_problem()
    found = [Problem(key="method.name", value=method.name, remedy=problem)] if problem else []
    return [*found, *agent_problems(method)]


def agent_problems(method: CodingConfig) -> list[Problem]:
    """Reasons why the configured agent could not start."""
    from vime.agent.harness.versions import BY_NAME
    from vime.hooks import import_remedy, load_hook

    if method.agent == OWN:
        return []
    if pinned := BY_NAME.get(method.agent):
        remedy = f"{pinned.package} is not installed: run `make agents`, or use method.agent={OWN}"
        return [] if pinned.program.exists() else [Problem(key="method.agent", value=method.agent, remedy=remedy)]
    try:
        load_hook(method.agent)
    except ImportError as error:
        remedy = f"is none of {', '.join([OWN, *BY_NAME])}, and {import_remedy(method.agent, error)}"
        return [Problem(key="method.agent", value=method.agent, remedy=remedy)]
    return []


ConfigStore.instance().store(group="schema/method", name="coding", node=CodingConfig)
