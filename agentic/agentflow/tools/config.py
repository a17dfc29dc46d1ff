"""Settings of one tool; the method's settings hold them by tool name: `tools: {python_coder: {model: coder}}`."""

from dataclasses import dataclass, field
from typing import Any

from vime.config.ranges import Count, Natural, Positive


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """Settings of one tool. A tool uses the ones that concern it, and a run is refused if a required one is missing."""

    path: str | None = None
    """Your own tool class: `module.Class` or `path/to/file.py:Class`; null for the built-in tool of this name."""
    model: str | None = None
    """The model that the tool asks, by its name in `serving.models`."""
    max_tokens: Count = 2048
    """Longest reply of the tool's model, in tokens."""
    endpoint: str | None = None
    """Address of the tool's service, for example http://127.0.0.1:8300."""
    topk: Count = 3
    """Number of documents that one search returns."""
    key_variable: str | None = None
    """Environment variable that holds the service's API key."""
    timeout_seconds: Positive | None = None
    """Time limit of one call; null for `rollout.tool_timeout_seconds`."""
    cache_size: Natural = 1024
    """Answers that a worker caches if the tool always answers a query alike; 0 turns the cache off."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further settings for your own tools; python_coder takes `prompt`, a template with the field {query}."""
