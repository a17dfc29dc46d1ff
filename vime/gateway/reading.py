"""Reads replies: reasoning, text and tool calls, by vLLM's own parsers, so that agents see what vLLM's server would show them.

The parsers are those of `vllm serve --tool-call-parser` and `--reasoning-parser`. Their import takes long and much memory, so it
happens with the first reader that needs one.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson

from vime.gateway.chat import ChatRequest, Delta, message_of
from vime.gateway.parser_tokenizer import MOST_KEPT, parser_tokenizer
from vime.gateway.text import ArrivingText
from vime.types import Integers, Message


class Reader:
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
        self._tokenizer, self._template_args = tokenizer, template_args or {}
        self.tool_parser = tool_parser
        self.special_ids = frozenset(tokenizer.all_special_ids)
        """Tokens that may end a reply. The tokenizer makes their list anew each time that it is asked."""
        self.unread = ""
        """Why the parser does not read the calls that the chat template writes; "" if it does (`vime.gateway.parser_check`)."""
        self._parser_class: Any = None
        self._constrained_class: Any = None
        """Of replies that are constrained from their first token on, so that no reasoning stands before them."""
        self._counter: Any = None
        self._asked: dict[bytes, Any] = {}
        """What parsers look at, by the tools and choices of requests; to make it takes as long as to read a reply."""
        if tool_parser or reasoning_parser:
            from vllm.parser.parser_manager import ParserManager

            logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)  # a traceback for each call that a model botches
            self._tokenizer = parser_tokenizer(tokenizer)
            try:
                self._parser_class, self._constrained_class = (
                    ParserManager.get_parser(tool_parser, reasoning, True, tokenizer=self._tokenizer)
                    for reasoning in (reasoning_parser, None)
                )
            except (TypeError, KeyError, ValueError) as error:
                raise ValueError(f"tool_parser={tool_parser}, reasoning_parser={reasoning_parser}: {error}") from error

    def begin(self, request: ChatRequest, prompt_ids: Any) -> "Reading":
        """Reads one reply to a request. Raises ValueError for a form of the text that vLLM does not know."""
        kind = self._constrained_class if request.is_constrained else self._parser_class
        asked: Any = self._asked_for(kind, request) if kind is not None or request.is_constrained else None
        parser = self._make_parser(kind, asked.tools) if kind is not None else None
        return Reading(self._tokenizer, parser, asked, request, prompt_ids, self._count_reasoning)

    def _asked_for(self, kind: Any, request: ChatRequest) -> Any:
        """The part of a request that parsers look at, as the parser has adjusted it; nothing changes it any more."""
        body: dict[str, Any] = {"tools": request.tools, "tool_choice": request.tool_choice} if request.offered else {}
        body |= {"response_format": request.response_format} if request.response_format else {}
        body |= {"structured_outputs": request.structured_outputs} if request.structured_outputs else {}
        key = orjson.dumps([request.is_constrained, body])
        if key not in self._asked:
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

            if len(self._asked) >= MOST_KEPT:
                self._asked.clear()
            asked = ChatCompletionRequest(messages=[], model="", **body)
            self._asked[key] = self._make_parser(kind, asked.tools).adjust_request(asked) if kind is not None else asked
        return self._asked[key]

    def _count_reasoning(self, ids: list[int]) -> int:
        """Counts up to the last end of reasoning, with one parser for all replies; to make one takes as long as to count."""
        self._counter = self._counter or self._make_parser(self._parser_class, [])
        ends = getattr(self._counter.reasoning_parser, "reasoning_end_token_ids", ())
        size = max((place + 1 for place, token in enumerate(ids) if token in ends), default=len(ids))
        return self._counter.count_reasoning_tokens(ids[:size])

    def _make_parser(self, kind: Any, tools: Any) -> Any:
        """A parser for one reply; parsers of reasoning look at the template's arguments (`enable_thinking`)."""
        return kind(self._tokenizer, tools, chat_template_kwargs=self._template_args)


class Reading:
    """One reply that is being read."""

    def __init__(
        self,
        tokenizer: Any,
        parser: Any,
        asked: Any,
        request: ChatRequest,
        prompt_ids: Any,
        count_reasoning: Callable[[list[int]], int],
    ) -> None:
        self._count_reasoning = count_reasoning
        self._tokenizer, self._prompt_ids, self._request = tokenizer, prompt_ids, request
        self.constraint: dict[str, Any] | None = None
        """What the model may sample (`structured_outputs` of vLLM's sampling parameters), None for everything."""
        self.stop_text = ""
        """The stop text that ended the reply."""
        self._special = frozenset(tokenizer.all_special_ids)
        self._parser, self._asked = parser, asked
        self._skips = parser is None or bool(asked.skip_special_tokens)
        if request.is_constrained:
            self.constraint = _constraint(asked)
        self._text = ArrivingText(tokenizer, skip_special_tokens=self._skips)
        self._deltas: list[Delta] = []
        self._waiting: list[int] = []
        self._has_begun = False

    def feed(self, ids: Integers) -> list[Delta]:
        """What tokens that have arrived add to the reply. A special token at their end may end the reply: it has to wait."""
        arrived = [*self._waiting, *ids]
        self._waiting = arrived[-1:] if arrived and arrived[-1] in self._special else []
        return self._parse(arrived[: len(arrived) - len(self._waiting)], finished=False)

    def finish(self, ids: Integers, *, stopped: bool) -> list[Delta]:
        """What the last tokens add. The end of a reply that the model `stopped` by itself is no part of its text."""
        rest = [*self._waiting, *ids]
        return self._parse(self._without_end(rest) if stopped else rest, finished=True)

    @property
    def message(self) -> Message:
        """What was fed so far, as a message."""
        return message_of(self._deltas)

    def whole(self, ids: Integers, *, stopped: bool) -> list[Delta]:
        """A whole reply at once, up to its stop text; text that a parser cannot read as a call stays text."""
        kept = self._without_end(list(ids)) if stopped else list(ids)
        text = self._tokenizer.decode(kept, skip_special_tokens=self._skips)
        end, self.stop_text = min(
            ((place, word) for word in self._request.stop if (place := text.find(word)) >= 0), default=(len(text), "")
        )
        text = text[:end]
        if self._parser is None:
            self._deltas = [Delta(content=text)]
            return self._deltas
        self._parser.set_prompt_token_ids(self._prompt_ids)
        reasoning, content, calls = self._parser.parse(text, self._asked, enable_auto_tools=True, model_output_token_ids=kept)
        found = [
            Delta(call=place, call_id=call.id or _call_id(place), name=call.name, arguments=call.arguments)
            for place, call in enumerate(calls or ())
        ]
        self._deltas = self._shown([Delta(reasoning=reasoning or "", content=content or ""), *found])
        return self._deltas

    def num_reasoning_tokens(self, ids: Integers) -> int:
        """How many of a reply's tokens are reasoning, as the parser counts them; it has counted those that arrived in pieces."""
        if self._parser is None or not any(delta.reasoning for delta in self._deltas):
            return 0
        count = self._parser.count_reasoning_tokens if self._has_begun else self._count_reasoning
        return count(list(ids))

    def _parse(self, ids: list[int], *, finished: bool) -> list[Delta]:
        text = self._text.add(ids) + (self._text.end() if finished else "")
        if not (text or ids or finished):
            return []
        if self._parser is None:
            found = [Delta(content=text)] if text else []
        else:
            prompt_ids = None if self._has_begun else list(self._prompt_ids)
            self._has_begun = True
            found = self._shown(_deltas(self._parser.parse_delta(text, ids, self._asked, prompt_ids, finished=finished)))
        self._deltas += found
        return found

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """Without the calls that the client does not take."""
        return deltas if self._request.parallel_calls else [delta for delta in deltas if not delta.call]

    def _without_end(self, ids: list[int]) -> list[int]:
        return ids[:-1] if ids and ids[-1] in self._special else ids


def _constraint(asked: Any) -> dict[str, Any] | None:
    found = asked.extract_structured_outputs()
    if found is None:
        return None
    return {key: value for key, value in asdict(found).items() if value not in (None, False) and not key.startswith("_")}


def _deltas(message: Any) -> list[Delta]:
    """vLLM's delta as ours."""
    if message is None:
        return []
    found = [Delta(reasoning=message.reasoning)] if message.reasoning else []
    found += [Delta(content=message.content)] if message.content else []
    for call in message.tool_calls or ():
        function = call.function
        found.append(
            Delta(
                call=call.index,
                call_id=call.id or "",
                name=(function.name if function else None) or "",
                arguments=(function.arguments if function else None) or "",
            )
        )
    return found


def _call_id(place: int) -> str:
    return f"call_{uuid.uuid4().hex[:16]}_{place}"
