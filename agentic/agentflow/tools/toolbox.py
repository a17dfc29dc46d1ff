"""The tools of a run: loads them, finds the one that a planner names, runs and counts calls, and caches answers."""

import asyncio
import re
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.tool import Tool, seconds_of
from vime.config import RunConfig
from vime.errors import ConfigError, Problem
from vime.hooks import load_hook
from vime.rollout.context import Context
from vime.rollout.tool import ToolOutcome, ToolResult, run_tool

BUILT_IN = {
    "base_generator": "agentic.agentflow.tools.base_generator.BaseGenerator",
    "python_coder": "agentic.agentflow.tools.python_coder.PythonCoder",
    "wikipedia_search": "agentic.agentflow.tools.search.WikipediaSearch",
    "web_search": "agentic.agentflow.tools.search.WebSearch",
    "google_search": "agentic.agentflow.tools.google_search.GoogleSearch",
}


class PlannerTools:
    """The tools of one run and their cached answers; a worker makes one for all its rollouts.

    Example: `await PlannerTools(method.tools, config).call(context, "python_coder", "print(6 * 7)")` is a `ToolResult` with the
    output `"42"`. Raises ConfigError if a tool cannot be loaded.
    """

    def __init__(self, tools: dict[str, ToolConfig], run: RunConfig) -> None:
        self._tools: dict[str, Tool] = {}
        for name, config in tools.items():
            loaded = load_tool(name, config)
            if isinstance(loaded, Problem):
                raise ConfigError([loaded])
            self._tools[name] = loaded(config, run)
        self._kept: dict[str, OrderedDict[str, str]] = {name: OrderedDict() for name in tools}

    @property
    def names(self) -> list[str]:
        """Names of all tools, in the order of the configuration."""
        return list(self._tools)

    def metadata(self) -> dict[str, dict[str, Any]]:
        """Description, input and demo commands by tool."""
        return {name: tool.metadata() for name, tool in self._tools.items()}

    def find(self, text: str) -> str | None:
        """The tool whose name, title or class name a text is, ignoring case and punctuation; None if there is none."""
        wanted = _letters(text)
        for name, tool in self._tools.items():
            if wanted and wanted in (_letters(name), _letters(tool.title), _letters(type(tool).__name__)):
                return name
        return None

    async def call(self, context: Context, name: str, query: str) -> ToolResult:
        """Calls a tool; a failed call is a result too, with an error message for the agent.

        Counts `tool_<name>_{calls,cache_hits,failures,timeouts,outages}`. Raises SandboxError and ServerError.
        """
        tool, kept = self._tools[name], self._kept[name]
        context.trace.count(f"tool_{name}_calls")
        if tool.deterministic and query in kept and not context.config.deterministic:  # who asks first is chance
            kept.move_to_end(query)
            context.trace.count(f"tool_{name}_cache_hits")
            return ToolResult(outcome=ToolOutcome.ANSWERED, output=kept[query])
        limited = _with_limit(context, seconds_of(tool.config, context))
        result = await run_tool(limited, name, tool.execute, context, query)
        if result.outcome is ToolOutcome.ANSWERED:
            if tool.deterministic and tool.config.cache_size:
                kept[query] = result.output
                while len(kept) > tool.config.cache_size:
                    kept.popitem(last=False)
            return result
        if result.lost is not None:
            context.trace.count(f"tool_{name}_outages")
            raise result.lost
        context.trace.count(f"tool_{name}_{'timeouts' if result.outcome is ToolOutcome.TIMED_OUT else 'failures'}")
        return result


def load_tool(name: str, config: ToolConfig) -> type[Tool] | Problem:
    """The class of a tool, or the problem with its name or path."""
    key, path = f"method.tools.{name}", config.path or BUILT_IN.get(name)
    if path is None:
        remedy = f"there is no such tool: choose from {', '.join(BUILT_IN)}, or set {key}.path=file.py:Class"
        return Problem(key=key, value=name, remedy=remedy)
    try:
        loaded = load_hook(path)
    except (ImportError, AttributeError, SyntaxError, OSError) as error:
        return Problem(key=f"{key}.path", value=path, remedy=f"cannot be imported ({error}); use module.Class or file.py:Class")
    if not (isinstance(loaded, type) and issubclass(loaded, Tool)):
        return Problem(key=f"{key}.path", value=path, remedy="is not a class that extends agentic.agentflow.tools.tool.Tool")
    if not asyncio.iscoroutinefunction(loaded.execute) or not loaded.description:
        remedy = "needs a description and `async def execute(self, context, query)`"
        return Problem(key=f"{key}.path", value=path, remedy=remedy)
    return loaded


def tool_problems(config: RunConfig) -> list[Problem]:
    """Problems of the tools in `config.method.tools`: a missing class, model, endpoint, key or sandbox."""
    problems: list[Problem] = []
    tools: dict[str, ToolConfig] = getattr(config.method, "tools", {})
    for name, settings in tools.items():
        loaded = load_tool(name, settings)
        problems += [loaded] if isinstance(loaded, Problem) else loaded.problems(f"method.tools.{name}", settings, config)
    return problems


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _with_limit(context: Context, seconds: float) -> Context:
    rollout = replace(context.config.rollout, tool_timeout_seconds=seconds)
    return replace(context, config=replace(context.config, rollout=rollout))
