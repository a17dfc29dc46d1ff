"""The roles of a rollout: which served model plays each of them, and how it is asked."""

from enum import Enum
from functools import cached_property

from agentic.agentflow.config import AgentFlowConfig
from agentic.agentflow.prompts import SETS, Prompts
from vime.chat.served_model import ServedModel
from vime.config import PromptStyle
from vime.rollout.context import Context
from vime.types import Message, Turn


class Role(str, Enum):
    """The frozen roles that the loop calls itself; the reward calls the judge, and a tool the coder."""

    executor = "executor"
    verifier = "verifier"
    generator = "generator"


async def ask(model: ServedModel, content: str, *, max_tokens: int) -> Turn:
    """The reply to one user message, of at most `max_tokens` tokens and no more than the model's context leaves.

    If it leaves none, the reply is empty and its finish reason is `length`.
    """
    messages: list[Message] = [{"role": "user", "content": content}]
    if not model.shows_tokens:
        return await model.chat(messages, max_tokens=max_tokens)
    talk = model.conversation(messages)
    room = min(max_tokens, talk.room)
    return await talk.reply(max_tokens=room) if room >= 1 else Turn(finish_reason="length")


class Roles:
    """The roles of one rollout with their models, prompts and the tools that the prompts describe."""

    def __init__(self, context: Context, *, toolbox: dict[str, str]) -> None:
        """`toolbox` has the description of each tool by its name."""
        self._context = context
        self._method = AgentFlowConfig.of(context.config)
        self.toolbox = toolbox

    @property
    def style(self) -> PromptStyle:
        """The set of prompts in use."""
        return self._method.prompt_style

    @property
    def prompts(self) -> Prompts:
        """The templates of this set."""
        return SETS[self.style]

    @cached_property
    def tool_names(self) -> str:
        """The names of all tools, separated by commas."""
        return ", ".join(self.toolbox)

    @cached_property
    def toolbox_text(self) -> str:
        """One line per tool: its name and description."""
        return "\n".join(f"{name}: {description}" for name, description in self.toolbox.items())

    async def plan(self, content: str) -> Turn:
        """A reply of the planner."""
        return await self._think(self._context.models[self._method.roles.planner], content)

    async def analyse(self, content: str) -> Turn:
        """A reply of the analyst, which is one of the rollout's sequences if the planner plays this role as well."""
        model = self._context.models[self._method.roles.analyst]
        return await self._think(model if self._method.plans_itself else model.untrained, content)

    async def _think(self, model: ServedModel, content: str) -> Turn:
        return await ask(model, content, max_tokens=self._method.max_planner_tokens)

    async def ask(self, role: Role, content: str) -> Turn:
        """A reply of a frozen role."""
        names = self._method.roles
        served = {Role.executor: names.executor, Role.verifier: names.verifier, Role.generator: names.generator}
        return await ask(self._context.models[served[role]].untrained, content, max_tokens=self._method.max_frozen_tokens)
