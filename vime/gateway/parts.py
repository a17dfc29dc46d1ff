"""The parts of a reply, one after the other, for protocols that give each of them a beginning and an end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vime.chat.request import Delta, deltas_of
from vime.types import Message

REASONING, TEXT, CALL = "reasoning", "text", "call"


@dataclass(kw_only=True, slots=True)
class Part:
    """Reasoning, text or a tool call. Example: `Part(kind="call", call_id="call_1", name="search", text='{"query": "Ada"}')`."""

    kind: str
    text: str = ""
    """The reasoning, the text, or the arguments of the call."""
    call_id: str = ""
    name: str = ""


Step = tuple[Literal["begin", "more", "end"], Part, str]
"""The change to the latest part; with `more`, the text that was added to it."""


class Parts:
    """Splits a reply into parts while it arrives.

    Reasoning and text of white space alone are left out, because clients of these protocols refuse them.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """All parts; the last one may still grow."""
        self._is_open = False
        self._blank = (TEXT, "")
        """White space that waits for text of its kind."""
        self._call: int | None = None

    @classmethod
    def of(cls, message: Message) -> list[Part]:
        """The parts of a whole reply."""
        parts = cls()
        for delta in deltas_of(message):
            for _ in parts.add(delta):
                pass
        return parts.parts

    def add(self, delta: Delta) -> Iterator[Step]:
        """The steps that a piece of the reply adds."""
        if delta.reasoning:
            yield from self._add_text(REASONING, delta.reasoning)
        if delta.content:
            yield from self._add_text(TEXT, delta.content)
        if delta.call is not None:
            if delta.call != self._call:
                yield from self._begin(Part(kind=CALL, call_id=delta.call_id, name=delta.name))
                self._call = delta.call
            if delta.arguments:
                yield self._more(delta.arguments)

    def end(self) -> Iterator[Step]:
        """Ends the last part."""
        if self._is_open:
            self._is_open = False
            yield "end", self.parts[-1], ""

    def _add_text(self, kind: str, text: str) -> Iterator[Step]:
        if not (self._is_open and self.parts[-1].kind == kind):
            waiting, blank = self._blank
            text = blank + text if waiting == kind else text
            self._blank = (kind, text)
            if not text.strip():
                return
            yield from self._begin(Part(kind=kind))
        yield self._more(text)

    def _begin(self, part: Part) -> Iterator[Step]:
        yield from self.end()
        self.parts.append(part)
        self._is_open, self._blank, self._call = True, (TEXT, ""), None
        yield "begin", part, ""

    def _more(self, text: str) -> Step:
        part = self.parts[-1]
        part.text += text
        return "more", part, text
