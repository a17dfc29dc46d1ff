"""What a tool is: a name, a description for the planner, a typed input, examples, and `execute`."""

from typing import Any, ClassVar

from agentic.agentflow.tools.config import ToolConfig
from vime.config import RunConfig
from vime.errors import Problem
from vime.rollout.context import Context


class Tool:
    """Base class of all tools; one of your own extends it and is named by its path in the configuration.

    Example: `class Reverse(Tool)` with `name = "reverse"`, a description, and `async def execute(self, context, query)` that
    returns `query[::-1]`. ValueError and TypeError mean a wrong query; anything else that is raised is tried again.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """A longer name that models know it by."""
    description: ClassVar[str] = ""
    """What it does, what to ask it, and what it cannot do."""
    input: ClassVar[dict[str, str]] = {"query": "str: what the tool is asked, in plain words"}
    demo_commands: ClassVar[tuple[str, ...]] = ()
    deterministic: bool = False
    """Whether the same query always has the same answer, so that answers can be kept."""

    def __init__(self, config: ToolConfig, run: RunConfig) -> None:
        self.config = config
        self.run = run

    async def execute(self, context: Context, query: str) -> str:
        """The answer to a query, as text for the planner's memory."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """What the tool lacks to work in a run; `key` is where its settings stand, like `method.tools.web_search`."""
        return []

    @classmethod
    def metadata(cls) -> dict[str, Any]:
        """What a planner and an executor are told."""
        return {"description": cls.description, "input": dict(cls.input), "demo_commands": list(cls.demo_commands)}


def seconds_of(config: ToolConfig, context: Context) -> float:
    """The time limit of one call."""
    return config.timeout_seconds or context.config.rollout.tool_timeout_seconds


def model_problems(key: str, config: ToolConfig, run: RunConfig, *, required: bool = True) -> list[Problem]:
    """The model that a tool asks is served."""
    served = ", ".join(run.serving.models) or "none"
    if config.model is None:
        remedy = f"the tool asks a model: name one of serving.models ({served})"
        return [Problem(key=f"{key}.model", value=None, remedy=remedy)] if required else []
    if config.model not in run.serving.models:
        remedy = f"no such model is served: name one of serving.models ({served}), or add it there"
        return [Problem(key=f"{key}.model", value=config.model, remedy=remedy)]
    return []
