"""vime trains language-model agents by reinforcement learning on Megatron-core, vLLM, vllm-router and Ray.

The names that can be imported from here are the public interface, for writing agents, tools, rewards, algorithms and methods.
They are stable; everything else may change. A name is loaded at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.algorithm.algorithm import Algorithm, Columns, Forward, Loss, Tokens
    from vime.config import MethodConfig, RunConfig
    from vime.errors import ConfigError, HookError, Problem, SampleError, VimeError
    from vime.rollout.context import Context
    from vime.rollout.mcp_tools import McpServer
    from vime.rollout.tool import Tool, ToolBox, ToolOutcome, ToolRefusal, ToolResult
    from vime.types import (
        ColumnType,
        Defined,
        EvalLog,
        Group,
        Message,
        Prompt,
        Reward,
        Rollout,
        Sample,
        Sampling,
        StopReason,
        Turn,
    )

__all__ = [
    "Algorithm",
    "ColumnType",
    "Columns",
    "ConfigError",
    "Context",
    "Defined",
    "EvalLog",
    "Forward",
    "Group",
    "HookError",
    "Loss",
    "McpServer",
    "Message",
    "MethodConfig",
    "Problem",
    "Prompt",
    "Reward",
    "Rollout",
    "RunConfig",
    "Sample",
    "SampleError",
    "Sampling",
    "StopReason",
    "Tokens",
    "Tool",
    "ToolBox",
    "ToolOutcome",
    "ToolRefusal",
    "ToolResult",
    "Turn",
    "VimeError",
]

_PLACES = {
    "vime.algorithm.algorithm": ("Algorithm", "Columns", "Forward", "Loss", "Tokens"),
    "vime.config": ("MethodConfig", "RunConfig"),
    "vime.errors": ("ConfigError", "HookError", "Problem", "SampleError", "VimeError"),
    "vime.rollout.context": ("Context",),
    "vime.rollout.mcp_tools": ("McpServer",),
    "vime.rollout.tool": ("Tool", "ToolBox", "ToolOutcome", "ToolRefusal", "ToolResult"),
}
"""Modules of names that are not in `vime.types`."""


def __getattr__(name: str) -> Any:
    """Loads a public name."""
    if name not in __all__:
        raise AttributeError(f"module 'vime' has no attribute {name!r}")
    place = next((module for module, names in _PLACES.items() if name in names), "vime.types")
    return getattr(import_module(place), name)
