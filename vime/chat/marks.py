"""The marks that divide a reply: where its reasoning ends, and where a tool call may begin.

vLLM's parsers define the marks. Reasoning and text can be sent while their tokens arrive; text that may be a call is held back
until the reply is whole. So a stream and a whole answer show the same, no matter how the tokens were cut into pieces.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from vime.chat.request import Delta

NAMED = ("tool_call_start_token", "tool_calls_start_token", "tool_start_token", "bot_token")
"""Attributes of vLLM's parsers that hold the text with which calls begin."""
BARE = ('{"name": "f", "arguments": {"x": 1}}', '[{"name": "f", "arguments": {"x": 1}}]', "[f(x=1)]")
"""Calls that some parsers read without a mark before them."""
_JSON = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The marks that divide the replies of one model.

    Example: `Marks(start="<think>", end="</think>", openings=("<tool_call>",), implicit=("<tool_call>",))`.
    """

    start: str = ""
    end: str = ""
    """Ends the reasoning with which replies begin; empty if they begin with their text."""
    openings: tuple[str, ...] = ()
    """Marks with which a call may begin. Empty if they are unknown: then the text waits until it is whole."""
    implicit: tuple[str, ...] = ()
    """The marks of calls that end reasoning by themselves, if it has no other end."""


def reasoning_marks(parser: Any, extract: Callable[[str], tuple[str | None, str | None]]) -> tuple[str, str] | None:
    """Begin and end marks of reasoning of one of vLLM's parsers; ("", "") if it reads no reasoning.

    `extract` returns the parser's result for a whole text. None if the parser does more than take the text before the end mark as
    reasoning.
    """
    start, end = getattr(parser, "reasoning_start_str", None), getattr(parser, "reasoning_end_str", None)
    read = {text: extract(text) for text in ("x", f"x{end}y", f"{start}x{end}y", f"{start}x")}
    if all(found == (None, text) for text, found in read.items()):
        return "", ""
    expected = [("x", None), ("x", "y"), ("x", "y"), ("x", None)]
    is_plain = [(one or None, two or None) for one, two in read.values()] == expected
    return (start, end) if is_plain and start and end else None


def openings_of(parser: Any, reads: Callable[[str], bool]) -> tuple[str, ...]:
    """The texts with which calls begin by one of vLLM's parsers; `reads` says whether it finds a call in a text."""
    named = {getattr(parser, name, None) for name in NAMED}
    config = getattr(getattr(parser, "_parser_engine", None), "parser_engine_config", None)
    if config is not None:
        for (_, terminal), transition in config.transitions.items():
            if any(event.name == "TOOL_CALL_START" for event in transition.events):
                named.add(config.terminals[terminal])
    bare = {text[0] for text in BARE if reads(text)}
    return tuple(sorted({word for word in named if isinstance(word, str) and word} | bare))


class Phase(Enum):
    """The part of the reply to which the text that arrives next belongs."""

    REASONING = 1
    UNSURE = 2
    """Reasoning that ends later, or calls by which it has ended: only the whole reply can tell."""
    TEXT = 3
    CALLS = 4


class Divided:
    """The text of one reply, divided as far as nothing that follows can change it.

    Example with `<think>`: `add("<think>Hm.</th")` returns the reasoning "Hm.", `add("ink>So")` the text "So".
    """

    def __init__(self, marks: Marks, *, thinks: bool, calls: bool) -> None:
        """`thinks` says whether the reply begins with reasoning, `calls` whether it may call tools."""
        self.phase = Phase.REASONING if thinks else Phase.TEXT
        self.rest = ""
        """The text that has not been sent yet."""
        self.content = ""
        """The text that has been sent."""
        self._marks, self._may_call = marks, calls
        self._is_first = True

    def add(self, text: str) -> list[Delta]:
        """Returns the reasoning and the text that newly arrived text adds."""
        self.rest += text
        found: list[Delta] = []
        if self.phase is Phase.REASONING:
            found += self._reasoning()
        if self.phase is Phase.TEXT:
            found += self._text()
        return found

    def settle(self) -> list[Delta]:
        """Returns the reasoning and text that the end of a reply adds: behind a mark of a call its reasoning may have gone on."""
        if self.phase is not Phase.UNSURE:
            return []
        end = _find((self._marks.end,), plain_calls(self.rest, self._marks.implicit, mask=True))  # a mark in a call is none
        if end == len(self.rest):
            return []
        self.phase = Phase.TEXT
        return [*self._said(end, behind=len(self._marks.end), reasoning=True), *self._text()]

    def _reasoning(self) -> list[Delta]:
        marks = self._marks
        if self._is_first:
            begun = self.rest.lstrip()
            if not begun or (marks.start.startswith(begun) and begun != marks.start):
                return []
            self._is_first, self.rest = False, begun.removeprefix(marks.start) if begun.startswith(marks.start) else self.rest
        openings = marks.implicit if self._may_call else ()
        end, opening = _find((marks.end,), self.rest), _find(openings, self.rest)
        if end < opening:
            self.phase = Phase.TEXT
            return self._said(end, behind=len(marks.end), reasoning=True)
        if opening < len(self.rest):
            self.phase = Phase.UNSURE
        return self._said(min(opening, _certain((marks.end, *openings), self.rest)), reasoning=True)

    def _text(self) -> list[Delta]:
        if not self._may_call:
            return self._said(len(self.rest))
        openings = self._marks.openings
        place = _find(openings, self.rest) if openings else 0
        if place < len(self.rest) or not openings:
            self.phase = Phase.CALLS
        place = min(place, _certain(openings, self.rest))
        is_blank = not self.content and not self.rest[:place].strip()  # white space alone before a call is no text
        return [] if is_blank else self._said(place)

    def _said(self, size: int, *, behind: int = 0, reasoning: bool = False) -> list[Delta]:
        text, self.rest = self.rest[:size], self.rest[size + behind :]
        if reasoning:
            return [Delta(reasoning=text)] if text else []
        self.content += text
        return [Delta(content=text)] if text else []


def plain_calls(text: str, openings: tuple[str, ...], *, mask: bool = False) -> str:
    """A text with its calls' JSON in a form that parsers read: strings without tags, and empty arguments for missing ones.

    With `mask` the text has the same length, and no tags in the JSON.
    """
    found, place = "", 0
    while (start := _find(openings, text[place:]) + place) < len(text):
        opening = next(word for word in openings if text.startswith(word, start))
        begin = start if opening in ("{", "[") else start + len(opening)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        try:
            value, end = _JSON.raw_decode(text, begin)
        except (ValueError, RecursionError):
            found, place = found + text[place : start + len(opening)], start + len(opening)
            continue
        is_bare = isinstance(value, dict) and set(value) == {"name"} and not mask
        written = json.dumps({**value, "arguments": {}}) if is_bare else text[begin:end]
        found += text[place:begin] + written.replace("<", "?" if mask else "\\u003c")
        place = end
    return found + text[place:]


def _find(words: tuple[str, ...], text: str) -> int:
    """Finds the first of these words; the length of the text if there is none."""
    return min((place for word in words if (place := text.find(word)) >= 0), default=len(text))


def _certain(words: tuple[str, ...], text: str) -> int:
    """The size of the part of a text that cannot end with the beginning of one of these words."""
    longest = max(map(len, words), default=1)
    for size in range(min(longest - 1, len(text)), 0, -1):
        if any(word.startswith(text[-size:]) for word in words):
            return len(text) - size
    return len(text)
