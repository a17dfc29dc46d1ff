"""What a protocol has to bring: how it asks, how it answers, and how it says no."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from vime.gateway.chat import ChatAnswer, ChatRequest, Delta, Refused

Event = tuple[str, dict[str, Any] | str]
"""A server-sent event: its name, empty if the protocol has none, and its data."""


class Stream(Protocol):
    """The events of one streamed answer."""

    def begin(self) -> Iterator[Event]:
        """Before the first piece."""
        ...

    def piece(self, place: int, delta: Delta) -> Iterator[Event]:
        """For each piece of the answer with this number."""
        ...

    def end(self, answers: list[ChatAnswer]) -> Iterator[Event]:
        """After the last piece."""
        ...


class Dialect(Protocol):
    """One protocol. It knows nothing of sessions, tokens and connections."""

    route: str

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ChatRequest:
        """Raises Refused for what cannot be honoured; unknown fields are ignored."""
        ...

    def answer(self, request: ChatRequest, answers: list[ChatAnswer]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def stream(self, request: ChatRequest) -> Stream:
        """Makes the events of an answer."""
        ...

    def error(self, refused: Refused) -> dict[str, Any]:
        """The body of an error."""
        ...


def text_of(content: Any, *, where: str, text_types: frozenset[str] = frozenset({"text"})) -> str:
    """A message's content as text: a string, nothing, or a list of text parts, which are joined by newlines as vLLM does."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refused(f"{where} must be a string or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in text_types and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refused(f"{where}: parts of type {kind!r} are not supported; send text", code="unsupported_content")
    return "\n".join(texts)


def wanted(body: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of a body, `default` if it is absent or null. Raises Refused if it is of another type."""
    value = body.get(key)
    if value is None:
        return default
    is_flag = isinstance(value, bool) and kind is not bool
    if is_flag or not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
        raise Refused(f"{key} must be of type {names}, not {type(value).__name__}")
    return value
