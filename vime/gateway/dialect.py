"""The interface of a protocol: its requests, its answers and its refusals."""

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from vime.chat.request import ChatAnswer, ChatRequest, Delta, Refused, Usage

Event = tuple[str, dict[str, Any] | str]
"""A server-sent event: its name, empty if the protocol has none, and its data."""


class Stream(Protocol):
    """The events of one streamed answer."""

    def begin(self, usage: Usage) -> Iterator[Event]:
        """Events before the first piece; the usage counts the prompt."""
        ...

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """Events for a piece of the answer with this number."""
        ...

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """Events after the last piece."""
        ...

    def error(self, refused: Refused) -> Iterator[Event]:
        """Events in place of the rest, if the answer cannot be completed."""
        ...


class Dialect(Protocol):
    """One protocol as one client speaks it. It knows nothing of sessions, tokens and connections."""

    route: ClassVar[str]
    count_route: ClassVar[str]
    """The route on which a client asks how many tokens a request has; empty if the protocol has no such question."""

    def parse(self, body: dict[str, Any]) -> ChatRequest:
        """Reads a request. Raises Refused for fields that cannot be honoured; unknown fields are ignored."""
        ...

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def stream(self, request: ChatRequest) -> Stream:
        """Makes the events of an answer."""
        ...

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The body that tells how many tokens a request has."""
        ...

    def error(self, refused: Refused) -> dict[str, Any]:
        """The body of an error."""
        ...


def new_id(kind: str) -> str:
    """An id that no other object has. Example: `new_id("resp")`."""
    return f"{kind}_{uuid.uuid4().hex}"
