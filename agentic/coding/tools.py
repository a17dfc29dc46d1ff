"""The tools of the agent: shell, view, edit, explore and submit, on a workspace."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from agentic.coding import prompts
from vime.agent.workspace.contract import WorkspaceLike
from vime.types import Message

EDITED, CREATED, SUBMITTED = "edited", "created", "submitted"
LEFT_OUT = "\n[... {} characters left out ...]\n"
Explore = Callable[[str], Awaitable[str]]


def _schema(name: str, description: str, *, optional: tuple[str, ...] = (), **parameters: str) -> dict[str, Any]:
    properties = {
        key: {"type": "integer" if key.endswith("_line") else "string", "description": text} for key, text in parameters.items()
    }
    required = [key for key in parameters if key not in optional]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


SHELL = _schema("shell", prompts.SHELL, command="the command line")
VIEW = _schema(
    "view",
    prompts.VIEW,
    optional=("first_line", "last_line"),
    path="the file, relative to the repository",
    first_line="the first line to show, from 1",
    last_line="the last line to show",
)
EDIT = _schema(
    "edit", prompts.EDIT, path="the file, relative to the repository", old="the text to replace", new="the text in its place"
)
EXPLORE = _schema("explore", prompts.EXPLORE, question="the question")
SUBMIT = _schema("submit", prompts.SUBMIT)
LOOKING = [SHELL, VIEW]
"""Tools of a sub-agent."""
ALL = [SHELL, VIEW, EDIT, EXPLORE, SUBMIT]


@dataclass(kw_only=True, slots=True)
class RepositoryTools:
    """Carries out tool calls. Whatever is wrong with a call becomes its result, which the agent is shown."""

    box: WorkspaceLike
    offered: tuple[str, ...]
    """The names of the tools that may be called."""
    command_seconds: float
    result_characters: int
    explore: Explore | None = None
    is_submitted: bool = False
    used: Counter[str] = field(default_factory=Counter)
    """Calls by tool; `unknown` and `invalid` for those that could not be carried out."""

    async def results(self, calls: list[dict[str, Any]]) -> list[Message]:
        """The results of calls, one after the other, as messages."""
        found: list[Message] = []
        for call in calls:
            content = shortened(await self._result(call["function"]), self.result_characters)
            found.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return found

    async def _result(self, function: dict[str, Any]) -> str:
        name = function["name"]
        if name not in self.offered:
            self.used["unknown"] += 1
            return f"there is no tool {name!r}; the tools are {', '.join(self.offered)}"
        try:
            arguments = json.loads(function["arguments"] or "{}")
            result = await _TOOLS[name](self, **arguments)
        except (json.JSONDecodeError, TypeError, ValueError, OSError) as error:
            self.used["invalid"] += 1
            return f"error: {error}"
        self.used[name] += 1
        return result

    async def _shell(self, command: str) -> str:
        return (await self.box.run(str(command), seconds=self.command_seconds)).text()

    async def _view(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        lines = (await self._text(path)).splitlines()
        shown = lines[max(0, int(first_line) - 1) : None if last_line is None else int(last_line)]
        return (
            "\n".join(f"{number:>4}  {line}" for number, line in enumerate(shown, start=max(1, int(first_line)))) or "(no lines)"
        )

    async def _edit(self, path: str, old: str, new: str) -> str:
        if not old:
            await self.box.write(path, new)
            return CREATED
        text = await self._text(path)
        if (count := text.count(old)) != 1:
            raise ValueError(f"the old text occurs {count} times in {path}, not once")
        await self.box.write(path, text.replace(old, new))
        return EDITED

    async def _explore(self, question: str) -> str:
        assert self.explore is not None, "a role without sub-agents was offered explore"
        return await self.explore(str(question))

    async def _submit(self) -> str:
        self.is_submitted = True
        return SUBMITTED

    async def _text(self, path: str) -> str:
        return (await self.box.read(path)).decode(errors="replace")


_TOOLS: dict[str, Callable[..., Awaitable[str]]] = {
    "shell": RepositoryTools._shell,
    "view": RepositoryTools._view,
    "edit": RepositoryTools._edit,
    "explore": RepositoryTools._explore,
    "submit": RepositoryTools._submit,
}


def shortened(text: str, most: int) -> str:
    """A text with its middle left out if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head = most // 2
    return text[:head] + LEFT_OUT.format(len(text) - most) + text[len(text) - (most - head) :]
