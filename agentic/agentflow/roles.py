"""Who is asked, and how: the served model of each role; each with the sampling of its model."""

from enum import Enum
from functools import cached_property

from agentic.agentflow.config import AgentFlowConfig
from agentic.agentflow.prompts import SETS, Prompts
from vime.config import PromptStyle
from vime.rollout.chat_model import ChatModel
from vime.rollout.context import Context
from vime.rollout.model import Model
from vime.types import Message, Turn


class Role(str, Enum):
    """The frozen roles that are asked in the loop itself; judge and coder are asked by the reward and by a tool."""

    executor = "executor"
    verifier = "verifier"
    generator = "generator"


async def ask(model: Model, content: str, *, max_tokens: int) -> Turn:
    """The reply to one user message, cut where the model's context ends; no room at all is an empty reply, cut by length."""
    messages: list[Message] = [{"role": "user", "content": content}]
    if isinstance(model, ChatModel):
        return await model.chat(messages, max_tokens=max_tokens)
    token_ids = model.render(messages)
    room = min(max_tokens, model.max_model_len - len(token_ids))
    if room >= 1:
        return await model.complete(token_ids, max_tokens=room)
    message = {"role": "assistant", "content": ""}
    return Turn(prompt_ids=token_ids, output_ids=[], logprobs=[], weight_versions=[], finish_reason="length", message=message)


class Roles:
    """The roles of one rollout, bound to its models, its prompts and the tools that they are told of."""

    def __init__(self, context: Context, *, toolbox: dict[str, str]) -> None:
        """`toolbox` has the description of each tool by its name."""
        self._context = context
        self._method = AgentFlowConfig.of(context.config)
        self.toolbox = toolbox

    @property
    def style(self) -> PromptStyle:
        """Which set of prompts."""
        return self._method.prompt_style

    @property
    def prompts(self) -> Prompts:
        """The templates."""
        return SETS[self.style]

    @cached_property
    def tool_names(self) -> str:
        """The names of all tools, as the prompts list them."""
        return ", ".join(self.toolbox)

    @cached_property
    def toolbox_text(self) -> str:
        """One line for each tool: its name and what it does."""
        return "\n".join(f"{name}: {description}" for name, description in self.toolbox.items())

    async def plan(self, content: str) -> Turn:
        """A turn of the planner."""
        model = self._context.models[self._method.roles.planner]
        return await ask(model, content, max_tokens=self._method.max_planner_tokens)

    async def ask(self, role: Role, content: str) -> Turn:
        """A turn of a frozen role."""
        names = self._method.roles
        served = {Role.executor: names.executor, Role.verifier: names.verifier, Role.generator: names.generator}
        return await ask(self._context.models[served[role]], content, max_tokens=self._method.max_frozen_tokens)
