"""The common part of all protocols: a request for a reply, the reply as it arrives, and the whole answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vime.trajectory.messages import ASSISTANT, calls_of
from vime.types import Integers, Message, Turn

CONTEXT_FULL = "context_length_exceeded"


class Refused(Exception):
    """A request that cannot be answered; its client is shown the message.

    Example: `Refused("image input is not supported: send text", status=400, code="unsupported")`.
    """

    def __init__(
        self, message: str, *, status: int = 400, code: str = "invalid_request_error", details: dict[str, Any] | None = None
    ) -> None:
        """`details` are what a client of Messages reads in place of the message."""
        super().__init__(message)
        self.message, self.status, self.code, self.details = message, status, code, details


@dataclass(kw_only=True, slots=True)
class ChatRequest:
    """One request in the form that chat templates take, without anything of its protocol.

    Example: `ChatRequest(messages=[{"role": "user", "content": "2 + 2?"}], max_tokens=64)`.
    """

    messages: list[Message]
    caller: str = ""
    """The name by which an agent tells its calls from those of others in the same session."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    """Maximum number of tokens; None for all that the context has room for."""
    stop: tuple[str, ...] = ()
    num_answers: int = 1
    stream: bool = False
    continues: bool = False
    """True if an assistant's message at the end is the beginning of the reply; else it is a finished turn."""
    tool_choice: str | dict[str, Any] = "auto"
    """auto, none, required, or the function that must be called, as Chat Completions names it."""
    parallel_calls: bool = True
    """False for at most one tool call; further ones are not shown to the client."""
    object_arguments: bool = False
    """True if the protocol has calls with objects for arguments only; a call with other ones is then shown as text."""
    response_format: dict[str, Any] | None = None
    """The form that the text must have, as Chat Completions names it; None for any."""
    structured_outputs: dict[str, Any] | None = None
    """The form that the text must have, as vLLM names it; None for any."""
    wants_logprobs: bool = False
    wants_token_ids: bool = False
    """True if the client asks for the ids of prompt and reply, as vLLM's own clients can."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the client asked for; the run's own are used in their place."""
    notes: list[str] = field(default_factory=list)
    """Parts of the request that are left out, to be logged."""
    options: dict[str, Any] = field(default_factory=dict)
    """Values that the protocol needs again for its answer."""

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that may be called."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def is_forced(self) -> bool:
        """True if a tool must be called."""
        return self.tool_choice not in ("auto", "none")

    @property
    def is_constrained(self) -> bool:
        """True if the model may not sample freely."""
        return self.is_forced or self.response_format is not None or self.structured_outputs is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """A piece of a reply. Example of a call's beginning: `Delta(call=0, call_id="call_1", name="search")`."""

    reasoning: str = ""
    content: str = ""
    call: int | None = None
    """The place of the tool call that it belongs to."""
    call_id: str = ""
    name: str = ""
    arguments: str = ""


Hear = Callable[[Delta], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one answer, as protocols report them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that earlier answers already had."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    prompt_ids: Integers | None = None
    """The prompt, if the request asks for token ids and they are known. It stays in memory with each such answer of a session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """A whole reply: the message that the client gets, and the turn that was sampled for it."""

    message: Message
    finish_reason: str
    """stop, length or tool_calls."""
    stop_text: str
    """The stop text that ended it, "" if none did."""
    turn: Turn
    usage: Usage


def message_of(deltas: list[Delta]) -> Message:
    """The message that these deltas add up to."""
    message: Message = {"role": ASSISTANT, "content": "".join(delta.content for delta in deltas)}
    if reasoning := "".join(delta.reasoning for delta in deltas):
        message["reasoning_content"] = reasoning
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.call is not None:
            empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = calls.setdefault(delta.call, empty)
            call["id"] += delta.call_id
            call["function"]["name"] += delta.name
            call["function"]["arguments"] += delta.arguments
    if calls:
        message["tool_calls"] = [calls[place] for place in sorted(calls)]
    return message


def deltas_of(message: Message) -> list[Delta]:
    """A whole message in as few pieces as possible."""
    text = Delta(reasoning=message.get("reasoning_content") or "", content=message.get("content") or "")
    calls = [
        Delta(call=place, call_id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for place, call in enumerate(calls_of(message))
    ]
    return [text, *calls] if text.reasoning or text.content else calls
