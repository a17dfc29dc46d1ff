"""Encodes texts of users, tools and documents as plain text: nothing in them becomes a control token of the chat template.

A document may contain `<|im_end|>` or a whole forged message; encoded with the rest of a conversation it would end the message.
So texts that contain such a word are rendered as placeholders and encoded separately, each such word in two pieces.
"""

import importlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError, TemplateRuntimeError

from vime.types import Message

logger = logging.getLogger(__name__)

Encode = Callable[[str], list[int]]
"""A function from a text to its token ids."""
TOOL = "tool"
_TEXT_KEYS = ("content", "text", "reasoning_content", "arguments")
_PLACEHOLDER = re.compile("(plain[0-9a-f]{24})")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A piece of a rendered conversation; `plain` text is encoded without control tokens."""

    text: str
    plain: bool = False


@dataclass(slots=True)
class ControlTokens:
    """The words that a tokenizer encodes as tokens of their own."""

    tokenizer: Any
    special: frozenset[str] = field(init=False)
    added: frozenset[str] = field(init=False)
    """Special words and those not marked special (`<tool_call>`, `<think>`), which a system prompt may well contain."""
    ids: frozenset[int] = field(init=False)
    special_ids: frozenset[int] = field(init=False)
    _found: "re.Pattern[str] | None" = field(init=False)
    """Finds a word that must be cut in two; None if there is none."""
    _split: "re.Pattern[str] | None" = field(init=False)
    """Cuts a text at its control tokens, as the tokenizer does; None if one of them also takes the blanks around it."""
    _backend: Any = field(init=False)
    """Encodes a short text in a quarter of the time of the tokenizer around it, because positions of tokens are not computed."""
    _fast: Encode | None = field(init=False, default=None)
    """Encodes in a few percent of that time (`hasten`)."""

    def __post_init__(self) -> None:
        self._backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self.tokenizer.encode("", add_special_tokens=False)  # from now on the backend neither truncates nor pads
        decoder = self.tokenizer.added_tokens_decoder
        self.ids = frozenset(decoder)
        self.special_ids = frozenset(place for place, token in decoder.items() if token.special)
        self.added = frozenset(token.content for token in decoder.values() if token.content)
        self.special = frozenset(token.content for token in decoder.values() if token.special and token.content)
        words = sorted(word for word in self.added if len(word) > 1)
        self._found = re.compile("|".join(map(re.escape, words))) if words else None
        longest = sorted(self.added, key=len, reverse=True)
        is_plain = longest and not any(token.lstrip or token.rstrip or token.single_word for token in decoder.values())
        self._split = re.compile(f"({'|'.join(map(re.escape, longest))})") if is_plain else None

    def hasten(self) -> None:
        """Makes the encoder that is worth its seconds and its memory where many texts are to come; the ids stay the same."""
        self._fast = self._fast or fast_encoder(self.tokenizer)

    def segments(self, messages: list[Message], **template: Any) -> list[Segment]:
        """The conversation as its template renders it, with the texts that must stay plain as segments of their own.

        Results of tools contain no control tokens, and other messages none that are marked special. Raises jinja2's
        TemplateError if the template cannot render them.
        """
        hidden: dict[str, str] = {}
        shown = [self._hide(message, hidden) for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(shown, tokenize=False, **template)
        except TemplateError:
            raise
        except Exception as error:  # a template is a program of others: it reads keys that are not there, say
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
        if not hidden:
            return [Segment(text=text)]
        found = [Segment(text=hidden.get(piece, piece), plain=piece in hidden) for piece in _PLACEHOLDER.split(text)]
        return [segment for segment in found if segment.text]

    def encode(self, segments: list[Segment], known: "dict[str, np.ndarray] | None" = None) -> list[int]:
        """Token ids. The texts between two control tokens are kept in `known`, if given, and not tokenized a second time."""
        ids: list[int] = []
        for segment in segments:
            encode = self.encode_plain if segment.plain else self._encode
            if known is None or self._split is None:
                ids += encode(segment.text)
                continue
            for piece in [segment.text] if segment.plain else self._split.split(segment.text):
                key = f"{segment.plain:d}{piece}"
                if key not in known:
                    known[key] = np.array(encode(piece), dtype=np.int32)
                ids += known[key].tolist()
        return ids

    def first(self, text: str) -> str:
        """The control token with which a text begins, "" if it begins with none."""
        return max((word for word in self.added if text.startswith(word)), key=len, default="")

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text without control tokens; they decode to the same text."""
        ids: list[int] = []
        known: dict[str, list[int]] = {}  # a text that repeats a control token cuts into the same few pieces
        for piece in self._pieces(text):
            if piece not in known:
                known[piece] = self._encode(piece)
            ids += known[piece]
        return ids

    def count(self, ids: Collection[int]) -> int:
        """The number of control tokens among ids."""
        return sum(map(self.ids.__contains__, ids))

    def _encode(self, text: str) -> list[int]:
        text = encodable(text)
        if self._fast is not None:
            return self._fast(text)
        if self._backend is None:
            return self.tokenizer.encode(text, add_special_tokens=False)
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _pieces(self, text: str) -> Iterator[str]:
        """The text cut after the first character of each control token in it, including overlapping ones."""
        start = 0
        found = self._found.search(text) if self._found else None
        while found and self._found:
            cut = found.start() + 1
            yield text[start:cut]
            start, found = cut, self._found.search(text, cut)
        if start < len(text):
            yield text[start:]

    def _hide(self, message: Message, hidden: dict[str, str]) -> Message:
        words = self.added if message.get("role") == TOOL else self.special

        def hide(value: Any, *, in_json: bool) -> Any:
            if isinstance(value, str):
                if not any(word in value for word in words):
                    return value
                name = f"plain{secrets.token_hex(12)}"
                hidden[name] = json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value
                return name
            if isinstance(value, dict):
                return {key: hide(item, in_json=in_json) for key, item in value.items()}
            return [hide(item, in_json=in_json) for item in value] if isinstance(value, list) else value

        found = {key: hide(message[key], in_json=False) if key in _TEXT_KEYS else message[key] for key in message}
        if "tool_calls" in found:
            found["tool_calls"] = hide(found["tool_calls"], in_json=True)
        return found


@lru_cache(maxsize=64)
def control_tokens(tokenizer: Any) -> ControlTokens:
    """The control tokens of a tokenizer, cached because asking the tokenizer takes microseconds each time."""
    return ControlTokens(tokenizer)


def render(tokenizer: Any, messages: list[Message], **template: Any) -> list[int]:
    """Token ids of a conversation with the prompt of the next reply; control tokens written in a message stay plain text."""
    tokens = control_tokens(tokenizer)
    return tokens.encode(tokens.segments(messages, add_generation_prompt=True, **template))


def encodable(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which has no UTF-8 and which no tokenizer takes.

    Rows and results of tools contain such halves where a program has cut a text by UTF-16 units.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(text) else text


def joined(segments: list[Segment]) -> str:
    """The text of segments."""
    return "".join(segment.text for segment in segments)


def after(segments: list[Segment], position: int) -> list[Segment]:
    """The segments after this many characters."""
    found = []
    for segment in segments:
        if position < len(segment.text):
            found.append(Segment(text=segment.text[position:], plain=segment.plain))
        position = max(0, position - len(segment.text))
    return found


SAMPLES = (
    "It's what WE'LL say, isn't it?  Two blanks,\ttabs, \r\n\r\n lines   \n and 3.14159 of 1,000,000 (50%) – “quotes”… ",
    'def f(x: int) -> dict:\n    """Doc."""\n\n    return {"a": [x ** 2, None], \'b\': x != 0}  # ---- ok\n\n\n',
    "früh fru\u0308h Ångström A\u030angstro\u0308m \ufb01ne \u212b K \u0130stanbul \u017f '\u017f ẛ̣ \u1e9b\u0323 x\u0301\u0327",
    "Ελληνικά, русский текст, עברית, العربية ١٢٣, हिन्दी में, ไทย, 中文字\uff0c日本語テキスト、 한국어 \u1112\u1161\u11ab",
    "😀👩‍👩‍👧‍👦🇩🇪 \u00a0\u3000\u2003\u200b\u2028\ufeff \x00\x07\x7f\x85 \U0001f9ff\U000e0041 ½ ² Ⅷ ㎏ ﷽",
    " ",
    "\n" * 40 + " " * 70 + "=" * 90 + "a" * 200 + "9" * 50,
)
"""Texts in which tokenizers could differ: contractions, blanks, numbers, code, composed characters, scripts, repetitions."""


def fast_encoder(tokenizer: Any) -> Encode | None:
    """A function from a text to its ids, with nothing added at its ends; None if only `tokenizer` itself can encode.

    To make it takes seconds if the vocabulary is large. It is None, too, unless `SAMPLES` and the tokenizer's control tokens have
    the same ids either way.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    try:
        fast = importlib.import_module("fastokens").Tokenizer.from_json_str(backend.to_str())

        def encode(text: str) -> list[int]:
            return fast.encode(text, add_special_tokens=False).ids

        words = [token.content for token in tokenizer.added_tokens_decoder.values()]
        texts = [*SAMPLES, " a\n".join(["", *words, ""]), *words]
        wrong = next((text for text in texts if encode(text) != _own(backend, text)), None)
    except (ImportError, ValueError) as error:  # no build for this machine, or another kind of tokenizer
        logger.debug("the tokenizer encodes by itself: %s", error)
        return None
    if wrong is not None:
        logger.warning("fastokens encodes %r differently, so the tokenizer encodes by itself", wrong)
        return None
    return encode


def _own(backend: Any, text: str) -> list[int]:
    return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
