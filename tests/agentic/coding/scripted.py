"""A session whose model says what a test wants, and a workspace in memory."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vime.agent.workspace.results import CommandResult
from vime.chat.request import ChatAnswer, ChatRequest, Usage
from vime.types import Message, Turn

Reply = str | tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]]
"""A text, a tool call, or several."""


def message_of(reply: Reply, number: int) -> Message:
    """A reply as the message that a client gets."""
    if isinstance(reply, str):
        return {"role": "assistant", "content": reply}
    calls = [reply] if isinstance(reply, tuple) else reply
    found = [
        {"id": f"call_{number}_{place}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for place, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": found}


@dataclass(kw_only=True)
class ScriptedSession:
    """Answers requests one after the other. A reply may be a function that is called with the request, or raise."""

    replies: list[Reply | Callable[[ChatRequest], Reply]]
    tokens_per_message: int = 10
    over: str = ""
    requests: list[ChatRequest] = field(default_factory=list)

    async def ask(self, request: ChatRequest) -> ChatAnswer:
        """The next reply; each message counts as a fixed number of tokens."""
        self.requests.append(ChatRequest(messages=list(request.messages), tools=request.tools, max_tokens=request.max_tokens))
        reply = self.replies.pop(0)
        message = message_of(reply(request) if callable(reply) else reply, len(self.requests))
        usage = Usage(prompt_tokens=self.tokens_per_message * len(request.messages), completion_tokens=self.tokens_per_message)
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
        return ChatAnswer(message=message, finish_reason=finish_reason, stop_text="", turn=Turn(prompt_ids=[]), usage=usage)


@dataclass(kw_only=True)
class MemoryBox:
    """Files by path; commands are answered by `commands`."""

    files: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)

    async def run(self, command: str, *, seconds: float) -> CommandResult:
        """The scripted result of a command."""
        return CommandResult(exit_code=0, stdout=self.commands[command], stderr="", reason="finished", seconds=0.0)

    async def read(self, path: str) -> bytes:
        """A file's content."""
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path].encode()

    async def write(self, path: str, content: str) -> None:
        """Replaces a file."""
        self.files[path] = content
