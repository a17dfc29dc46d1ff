"""Strands: a model provider that asks a session, and a bound on the agent's loop.

    agent = Agent(model=SessionModel(max_tokens=512), tools=[…], hooks=[LoopLimiter(most_turns=8)],
                  conversation_manager=NullConversationManager())

It needs `strands-agents[openai]` and no other part of vime. The session keeps the exact tokens and logprobs of each turn.
"""

import os
from collections.abc import Iterator
from typing import Any

from strands.hooks import (  # pyright: ignore[reportMissingImports]
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
)
from strands.models.openai import OpenAIModel  # pyright: ignore[reportMissingImports]

ASSISTANT = "assistant"


class SessionModel(OpenAIModel):
    """The model of a session, which `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL` name.

    Strands' own provider leaves the reasoning of earlier turns out; here it is sent again, because a chat template that shows it
    would otherwise render a history that the model never saw. A full context raises Strands' ContextWindowOverflowException, and
    a server that takes no more requests ModelThrottledException, upon which Strands waits and asks again.
    """

    def __init__(self, **params: Any) -> None:
        """`params` are those of a request, such as `max_tokens`. A call waits as long as the weights are being changed."""
        address = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "timeout": None}
        super().__init__(client_args=address, model_id=os.environ.get("OPENAI_MODEL", "policy"), params=params)

    @classmethod
    def format_request_messages(cls, messages: Any, system_prompt: str | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """The messages as Chat Completions takes them, with `reasoning_content`."""
        found: list[dict[str, Any]] = super().format_request_messages(messages, system_prompt, **kwargs)
        thoughts = _thoughts(messages)
        return [
            {**message, "reasoning_content": thought} if message["role"] == ASSISTANT and (thought := next(thoughts)) else message
            for message in found
        ]


def _thoughts(messages: Any) -> Iterator[str]:
    """The reasoning of each reply that has a text or a call, "" if it has none."""
    for message in messages:
        if message["role"] == ASSISTANT and any("text" in block or "toolUse" in block for block in message["content"]):
            blocks = [block["reasoningContent"] for block in message["content"] if "reasoningContent" in block]
            yield "".join(block.get("reasoningText", {}).get("text", "") for block in blocks)


class LoopLimiter(HookProvider):
    """Ends the loop after some number of turns with tools, or of tool calls, as if the model had ended it, without an exception.

    What Strands then returns as the last message was not sampled; `is_reached` says that it happened.
    """

    def __init__(self, *, most_turns: int | None = None, most_calls: int | None = None) -> None:
        self._most_turns, self._most_calls = most_turns, most_calls
        self.num_turns, self.num_calls, self.is_reached = 0, 0, False

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Called by Strands."""
        registry.add_callback(BeforeInvocationEvent, self._begin)
        registry.add_callback(BeforeToolCallEvent, self._before_call)
        registry.add_callback(AfterToolsEvent, self._after_turn)

    def _begin(self, event: Any) -> None:
        self.num_turns, self.num_calls, self.is_reached = 0, 0, False

    def _before_call(self, event: Any) -> None:
        self.num_calls += 1
        if self._most_calls is not None and self.num_calls > self._most_calls:
            event.cancel_tool = f"at most {self._most_calls} tool calls are allowed"
            self.is_reached = True

    def _after_turn(self, event: Any) -> None:
        self.num_turns += 1
        self.is_reached = self.is_reached or self.num_turns == self._most_turns
        if self.is_reached:
            event.end_turn = True
