"""The base class of tools: a name, a description for the planner, a typed input, examples, and `execute`."""

from typing import Any, ClassVar

from agentic.agentflow.tools.config import ToolConfig
from vime.config import RunConfig
from vime.errors import Problem
from vime.rollout.context import Context


class Tool:
    """Base class of all tools. Your own tool extends it; the setting `path` names the class.

    Example: `class Reverse(Tool)` with `name = "reverse"`, a description, and `async def execute(self, context, query)` that
    returns `query[::-1]`. A ValueError or TypeError means that the query was wrong; after any other error the call is retried.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """A longer name by which models may call the tool."""
    description: ClassVar[str] = ""
    """A description of the tool: its use, the way to query it, and its limits."""
    input: ClassVar[dict[str, str]] = {"query": "str: what the tool is asked, in plain words"}
    demo_commands: ClassVar[tuple[str, ...]] = ()
    deterministic: bool = False
    """True if the same query always has the same answer, so that answers can be cached."""

    def __init__(self, config: ToolConfig, run: RunConfig) -> None:
        self.config = config
        self.run = run

    async def execute(self, context: Context, query: str) -> str:
        """The answer to a query, as text for the planner's memory."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """Problems of the tool's settings in a run; `key` is their configuration key, like `method.tools.web_search`."""
        return []

    @classmethod
    def metadata(cls) -> dict[str, Any]:
        """The description of the tool for planner and executor."""
        return {"description": cls.description, "input": dict(cls.input), "demo_commands": list(cls.demo_commands)}


def seconds_of(config: ToolConfig, context: Context) -> float:
    """The time limit of one call."""
    return config.timeout_seconds or context.config.rollout.tool_timeout_seconds


def model_problems(key: str, config: ToolConfig, run: RunConfig, *, required: bool = True) -> list[Problem]:
    """Checks that the model that a tool asks is named, if `required`, and served."""
    served = ", ".join(run.serving.models) or "none"
    if config.model is None:
        remedy = f"the tool asks a model: name one of serving.models ({served})"
        return [Problem(key=f"{key}.model", value=None, remedy=remedy)] if required else []
    if config.model not in run.serving.models:
        remedy = f"no such model is served: name one of serving.models ({served}), or add it there"
        return [Problem(key=f"{key}.model", value=config.model, remedy=remedy)]
    return []
