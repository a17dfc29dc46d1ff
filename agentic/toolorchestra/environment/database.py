"""A task's database and the tools that read and change it; two databases are equal if their hashes are."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Data = dict[str, Any]
Action = dict[str, Any]
"""`{"name": …, "arguments": {…}}`."""


class ToolError(ValueError):
    """A call that breaks the rules of the database or names something unknown; the agent sees the message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseTool:
    """A function of the database; `writes` is True if it may change the data.

    Example: `DatabaseTool(name="get_order", description="…", parameters={"order_id": "…"}, writes=False, run=get_order)`.
    """

    name: str
    description: str
    parameters: Mapping[str, str]
    """Description of each parameter; all parameters are required texts."""
    writes: bool
    run: Callable[..., Any]
    """`run(data, **arguments)`; raises ToolError."""

    def schema(self) -> dict[str, Any]:
        """The tool's schema in OpenAI's form."""
        properties = {name: {"type": "string", "description": text} for name, text in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.parameters)}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}


class Database:
    """Data that only its tools read and change."""

    def __init__(self, data: Data, tools: Sequence[DatabaseTool]) -> None:
        self._data = copy.deepcopy(data)
        self.tools = {tool.name: tool for tool in tools}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A tool's answer as JSON.

        Raises ToolError for an unknown tool, wrong arguments, or a call that the tool refuses; the data are then unchanged.
        """
        tool = self.tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name}")
        if set(arguments) != set(tool.parameters) or not all(isinstance(value, str) for value in arguments.values()):
            raise ToolError(f"{name} takes the texts {', '.join(tool.parameters) or 'none'}")
        data = copy.deepcopy(self._data)
        answer = tool.run(data, **arguments)
        if tool.writes:
            self._data = data
        return json.dumps(answer, ensure_ascii=False)

    def hash(self) -> str:
        """SHA-256 of the data, independent of the order of keys."""
        return hashlib.sha256(json.dumps(self._data, sort_keys=True).encode()).hexdigest()


def replayed(data: Data, tools: Sequence[DatabaseTool], actions: Sequence[Action]) -> Database:
    """The database after a task's own actions. Raises ToolError if one is refused, which is an error of the task."""
    database = Database(data, tools)
    for action in actions:
        database.call(action["name"], action["arguments"])
    return database
