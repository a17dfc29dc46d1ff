"""Settings of one tool; a method holds them by the tool's name: `tools: {python_coder: {model: coder}}`."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """What a tool needs; each tool reads what it uses and refuses to start without what it must have."""

    path: str | None = None
    """A class of your own: `module.Class` or `path/to/file.py:Class`; None is the built-in one of that name."""
    model: str | None = None
    """The served model that the tool asks, by its name in `serving.models`."""
    max_tokens: int = 2048
    """Longest reply of that model."""
    endpoint: str | None = None
    """Address of the service that the tool asks, like http://127.0.0.1:8300."""
    topk: int = 3
    """Documents of one search."""
    key_variable: str | None = None
    """The environment variable that holds the service's key."""
    timeout_seconds: float | None = None
    """Of one call; None is `rollout.tool_timeout_seconds`."""
    cache_size: int = 1024
    """Answers kept by a worker, if the tool gives the same one to the same query; 0 keeps none."""
    options: dict[str, Any] = field(default_factory=dict)
    """For tools of your own; python_coder takes `prompt`, with {query} in it."""
