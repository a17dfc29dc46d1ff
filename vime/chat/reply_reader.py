"""Reads replies: reasoning, text and tool calls, by vLLM's own parsers, so that agents see what vLLM's server would show them.

The parsers are those of `vllm serve --tool-call-parser` and `--reasoning-parser`. Their import takes long and much memory, so it
happens with the first reader that needs one.
"""

import json
import uuid
from dataclasses import asdict
from typing import Any

import orjson
from jinja2.exceptions import TemplateError
from tokenizers.decoders import DecodeStream

from vime.chat.marks import Divided, Marks, Phase, openings_of, plain_calls, reasoning_marks
from vime.chat.request import ChatRequest, Delta, deltas_of, message_of
from vime.errors import ConfigError, Problem
from vime.trajectory.messages import ASSISTANT, calls_of, parsed
from vime.trajectory.plain_text import encodable
from vime.trajectory.template import ChatTemplate
from vime.types import Integers, Message
from vime.vllm_parts import MOST_KEPT, parsed_request, parser_tokenizer, reply_parsers


class ReplyReader:
    """Reads the replies of one model. Without parsers a reply is its text."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        template_args: dict[str, Any] | None = None,
    ) -> None:
        """Raises ValueError for a parser that vLLM does not have, or that does not fit the tokenizer."""
        self.tokenizer, self._template_args = tokenizer, template_args or {}
        self.tool_parser = tool_parser
        self.special_ids = frozenset(tokenizer.all_special_ids)
        """Tokens that may end a reply. The tokenizer makes their list anew each time that it is asked."""
        self.unread = ""
        """The reason why the parser does not read the calls that the chat template writes; "" if it does
        (`vime.chat.reply_reader`)."""
        self._parser_class: Any = None
        self._constrained_class: Any = None
        """The class of parsers for replies that are constrained from their first token on, so that no reasoning comes before
        them."""
        self._counter: Any = None
        self._asked: dict[bytes, Any] = {}
        """Cached parts of requests that parsers look at, by tools and choices; making one takes as long as reading a reply."""
        if tool_parser or reasoning_parser:
            self.tokenizer = parser_tokenizer(tokenizer)
            self._parser_class, self._constrained_class = reply_parsers(
                self.tokenizer, tool_parser=tool_parser, reasoning_parser=reasoning_parser
            )
        self.marks = self._find_marks()
        """The marks that divide replies while they arrive."""

    def begin(self, request: ChatRequest, prompt_ids: Any) -> "Reading":
        """Reads one reply to a request. Raises ValueError for a form of the text that vLLM does not know."""
        kind = self._constrained_class if request.is_constrained else self._parser_class
        asked: Any = self._asked_for(kind, request) if kind is not None or request.is_constrained else None
        return Reading(self, request, asked, prompt_ids, thinks=not request.is_constrained and self._thinks(prompt_ids))

    def parse(self, text: str, asked: Any, *, prompt_ids: Any = None) -> tuple[str | None, str | None, list[Any]]:
        """Reasoning, text and calls of a whole text by vLLM's parser; with `prompt_ids` it reads reasoning as well."""
        kind = self._constrained_class if prompt_ids is None else self._parser_class
        if kind is None:
            return None, text, []
        parser = self._make_parser(kind, asked.tools)
        if prompt_ids is not None:
            parser.set_prompt_token_ids(prompt_ids)
        try:
            reasoning, content, calls = parser.parse(text, asked, enable_auto_tools=True)
        except Exception:  # whatever a parser makes of what a model wrote: it is text then
            return None, text, []
        return reasoning, content, list(calls or ())

    def count_reasoning(self, ids: list[int]) -> int:
        """Counts up to the last end of reasoning, with one parser for all replies: making one takes as long as counting."""
        self._counter = self._counter or self._make_parser(self._parser_class, [])
        ends = getattr(self._counter.reasoning_parser, "reasoning_end_token_ids", ())
        size = max((place + 1 for place, token in enumerate(ids) if token in ends), default=len(ids))
        return self._counter.count_reasoning_tokens(ids[:size])

    def _thinks(self, prompt_ids: Any) -> bool:
        """True if a reply begins with reasoning: unless its prompt has ended it, behind the last special token."""
        marks = self.marks
        if marks is None or not marks.end:
            return False
        ids = [int(token) for token in prompt_ids]
        place = next((place for place in range(len(ids) - 1, -1, -1) if ids[place] in self.special_ids), -1)
        begun = self.tokenizer.decode(ids[place + 1 :], skip_special_tokens=False)
        return begun.rfind(marks.end) <= begun.rfind(marks.start)

    def _find_marks(self) -> Marks | None:
        """The marks that divide replies; None if only vLLM's parser knows them, and then nothing is sent before a reply's end."""
        if self._parser_class is None:
            return Marks()
        asked = self._asked_for(self._parser_class, ChatRequest(messages=[]))
        both, tools = self._make_parser(self._parser_class, []), None

        def extract(text: str) -> tuple[str | None, str | None]:
            return self._make_parser(self._parser_class, []).reasoning_parser.extract_reasoning(text, asked)

        found = ("", "") if both.reasoning_parser is None else reasoning_marks(both.reasoning_parser, extract)
        if found is None:
            return None
        openings: tuple[str, ...] = ()
        if self._constrained_class is not None:
            offered = ChatRequest(messages=[], tools=[{"type": "function", "function": {"name": "f"}}])
            asked_tools = self._asked_for(self._constrained_class, offered)
            tools = self._make_parser(self._constrained_class, asked_tools.tools).tool_parser
            openings = openings_of(tools, lambda text: bool(self.parse(text, asked_tools)[2]))
        implicit = [word for word in openings if found[1] and extract(f"x{word}y") == ("x", f"{word}y")]
        return Marks(start=found[0], end=found[1], openings=openings, implicit=tuple(implicit))

    def _asked_for(self, kind: Any, request: ChatRequest) -> Any:
        """The part of a request that parsers look at, as the parser has adjusted it; nothing changes it any more."""
        body: dict[str, Any] = {"tools": request.tools, "tool_choice": request.tool_choice} if request.offered else {}
        body |= {"response_format": request.response_format} if request.response_format else {}
        body |= {"structured_outputs": request.structured_outputs} if request.structured_outputs else {}
        key = orjson.dumps([request.is_constrained, body])
        if key not in self._asked:
            if len(self._asked) >= MOST_KEPT:
                self._asked.clear()
            asked = parsed_request(body)
            self._asked[key] = self._make_parser(kind, asked.tools).adjust_request(asked) if kind is not None else asked
        return self._asked[key]

    def _make_parser(self, kind: Any, tools: Any) -> Any:
        """A parser for one reply; parsers of reasoning look at the template's arguments (`enable_thinking`)."""
        return kind(self.tokenizer, tools, chat_template_kwargs=self._template_args)


class Reading:
    """One reply that is being read."""

    def __init__(self, reader: ReplyReader, request: ChatRequest, asked: Any, prompt_ids: Any, *, thinks: bool) -> None:
        self._reader, self._request, self._asked, self._prompt_ids = reader, request, asked, prompt_ids
        self.constraint: dict[str, Any] | None = _constraint(asked) if request.is_constrained else None
        """The constraint on sampling (`structured_outputs` of vLLM's sampling parameters), None if everything may be sampled."""
        self.stop_text = ""
        """The stop text that ended the reply."""
        self._is_forced = request.tool_choice not in ("auto", "none")
        self._may_call = bool(request.offered) and reader.tool_parser is not None
        skips = asked is None or (bool(asked.skip_special_tokens) and not self._may_call)  # arguments may contain such words
        self._text = ArrivingText(reader.tokenizer, skip_special_tokens=skips)
        marks = Marks() if self._is_forced else reader.marks
        self._divided = None if marks is None else Divided(marks, thinks=thinks, calls=self._may_call)
        self._whole = ""
        """The text so far, if only vLLM's parser knows the marks that divide it."""
        self._deltas: list[Delta] = []
        self._waiting: list[int] = []

    def feed(self, ids: Integers) -> list[Delta]:
        """The pieces that new tokens add to the reply. A special token at their end may end the reply: it has to wait."""
        arrived = [*self._waiting, *ids]
        self._waiting = arrived[-1:] if arrived and arrived[-1] in self._reader.special_ids else []
        return self._add(self._text.add(arrived[: len(arrived) - len(self._waiting)]))

    def finish(self, ids: Integers, *, stopped: bool) -> list[Delta]:
        """The pieces that the last tokens add. If the model `stopped` the reply itself, the end mark is not part of the text."""
        rest = [*self._waiting, *ids]
        text = self._text.add(self._without_end(rest) if stopped else rest) + self._text.end()
        return [*self._add(text), *self._end()]

    @property
    def message(self) -> Message:
        """The reply that was fed so far, as a message."""
        return message_of(self._deltas)

    def whole(self, ids: Integers, *, stopped: bool) -> list[Delta]:
        """A whole reply at once, up to its stop text; text that cannot be read as a call stays text."""
        kept = self._without_end(list(ids)) if stopped else list(ids)
        text = self._text.add(kept) + self._text.end()
        end, self.stop_text = min(
            ((place, word) for word in self._request.stop if (place := text.find(word)) >= 0), default=(len(text), "")
        )
        self._add(text[:end])
        self._end()
        self._deltas = deltas_of(self.message)
        return self._deltas

    def num_reasoning_tokens(self, ids: Integers) -> int:
        """Number of a reply's tokens that are reasoning, as the parser counts them."""
        return self._reader.count_reasoning(list(ids)) if any(delta.reasoning for delta in self._deltas) else 0

    def _add(self, text: str) -> list[Delta]:
        if self._divided is None:
            self._whole += text
            return []
        found = self._divided.add(text)
        self._deltas += found
        return found

    def _end(self) -> list[Delta]:
        """Returns the text that was held back: text, and the calls in it if all of them can be read and said."""
        divided = self._divided
        settled = [] if divided is None else divided.settle()
        if divided is None:
            reasoning, content, calls = self._read(self._whole, prompt_ids=self._prompt_ids)
            text = content or "" if calls or reasoning else self._whole
            found = [Delta(reasoning=reasoning or "", content=text)]
        elif divided.phase in (Phase.UNSURE, Phase.REASONING):
            _, content, calls = self._read(divided.rest) if divided.phase is Phase.UNSURE else (None, None, [])
            found = [Delta(content=content or "") if calls else Delta(reasoning=divided.rest)]
        else:
            said, written = divided.content, divided.content + divided.rest
            _, content, calls = self._read(written) if self._may_call else (None, None, [])
            text = (content or "").removeprefix(said) if (content or "").startswith(said) else ""
            found = [Delta(content=text if calls else divided.rest)]
        found = [*settled, *(delta for delta in found if delta.reasoning or delta.content)]
        found += calls if self._request.parallel_calls else calls[:1]
        self._deltas += found
        return found

    def _read(self, text: str, *, prompt_ids: Any = None) -> tuple[str | None, str | None, list[Delta]]:
        """Reasoning, text and calls of a text; no calls if one of them lacks a name, or has arguments unfit for the protocol."""
        openings = self._reader.marks.openings if self._reader.marks is not None and not self._is_forced else ()
        reasoning, content, calls = self._reader.parse(plain_calls(text, openings), self._asked, prompt_ids=prompt_ids)
        found = [
            Delta(
                call=place,
                call_id=call.id or _call_id(place),
                name=encodable(call.name or ""),
                arguments=_arguments(call.arguments or ""),
            )
            for place, call in enumerate(calls)
        ]
        cannot = self._request.object_arguments and any(not isinstance(parsed(call.arguments), dict) for call in found)
        return reasoning, content, [] if cannot or not all(call.name for call in found) else found

    def _without_end(self, ids: list[int]) -> list[int]:
        return ids[:-1] if ids and ids[-1] in self._reader.special_ids else ids


def _constraint(asked: Any) -> dict[str, Any] | None:
    found = asked.extract_structured_outputs()
    if found is None:
        return None
    return {key: value for key, value in asdict(found).items() if value not in (None, False) and not key.startswith("_")}


def _arguments(written: str) -> str:
    """The arguments of a call in a form that protocols can hold: "{}" if there are none, and an object in a string unquoted."""
    text = encodable(written)
    found = parsed(text)
    if isinstance(found, str) and found != text and isinstance(inner := parsed(found), dict):
        text, found = found, inner
    if isinstance(found, dict) and "\\u" in text:
        return json.dumps(found, ensure_ascii=False)  # an escaped half of a surrogate pair would come back as one
    return "{}" if found is None or found == "" or not text.strip() else text


def _call_id(place: int) -> str:
    return f"call_{uuid.uuid4().hex[:16]}_{place}"


def check_parser(reader: ReplyReader | None, name: str) -> None:
    """Raises ConfigError if no parser reads the tool calls of a model, to which tools are offered."""
    parser = reader.tool_parser if reader is not None else None
    if reader is not None and parser is not None and not reader.unread:
        return
    unread = reader.unread if reader is not None else ""
    reason = f"the parser {parser} does not read the calls that the model is shown: {unread}" if parser else "there is no parser"
    remedy = f"the agent offers tools, but {reason}; choose the parser with which vllm serve reads this model's tool calls"
    raise ConfigError([Problem(key=parser_key(name), value=parser, remedy=remedy)])


def parser_key(name: str) -> str:
    """The setting that names a model's parser of tool calls."""
    return "model.tool_parser" if name == "actor" else f"serving.models.{name}.tool_parser"


class ArrivingText:
    """Decodes the tokens of one reply; text that has been sent is never taken back.

    Example: `text.add([9, 7])` returns "He", `text.end()` returns what was left over of an unfinished character.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._num_characters = 0

    def add(self, ids: list[int]) -> str:
        """The new text."""
        self._ids += ids
        backend = self._tokenizer.backend_tokenizer
        text = "".join(piece for token in ids if (piece := self._stream.step(backend, token)))
        self._num_characters += len(text)
        return text

    def end(self) -> str:
        """The rest of the text."""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=self._skips, clean_up_tokenization_spaces=False)
        return text[self._num_characters :]


_TOOL_NAME = "search"
_QUERIES = ("Ada Lovelace", "früh am Morgen")
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": _TOOL_NAME,
            "description": "Searches.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
_QUESTION: Message = {"role": "user", "content": "Who?"}


def unread_calls(tokenizer: Any, template_args: dict[str, Any], reader: ReplyReader) -> str:
    """The reason why the calls that the template writes cannot be read; "" if they can.

    The test uses one call if the template does not accept two in a reply.
    """
    template = ChatTemplate(tokenizer, template_args)
    for queries in (_QUERIES, _QUERIES[:1]):
        try:
            prompt = template.prompt([_QUESTION], _TOOLS)
            written = template.reply([_QUESTION], _calling(queries), _TOOLS)
        except TemplateError as error:
            problem = f"the chat template does not render them ({error})"
            continue
        reading = reader.begin(ChatRequest(messages=[_QUESTION], tools=_TOOLS), template.encode(prompt, {}))
        reading.whole(tokenizer.encode(written, add_special_tokens=False), stopped=False)
        found = [(call["function"]["name"], parsed(call["function"]["arguments"])) for call in calls_of(reading.message)]
        if found == [(_TOOL_NAME, {"query": query}) for query in queries]:
            return ""
        return f"the chat template writes {written!r}, of which the parser reads {found or 'no call'}"
    return problem


def _calling(queries: tuple[str, ...]) -> Message:
    calls = [
        {"id": f"call{place:05}", "type": "function", "function": {"name": _TOOL_NAME, "arguments": {"query": query}}}
        for place, query in enumerate(queries)
    ]
    return {"role": ASSISTANT, "content": "", "tool_calls": calls}
