"""A tokenizer for vLLM's parsers, which are made anew for each reply and ask it for the same things each time.

Without it a parser copies the whole vocabulary and prepares a lexer of all special tokens, for each reply.
"""

from collections.abc import Callable
from typing import Any

MOST_KEPT = 64
"""Lexers that are kept; parsers whose configuration is a new object each time would otherwise fill the memory."""


def parser_tokenizer(tokenizer: Any) -> Any:
    """A copy of a tokenizer that keeps its vocabulary. From now on this process prepares each kind of lexer once."""
    from vllm.parser.engine import streaming_parser_engine as engine
    from vllm.tokenizers.hf import get_cached_tokenizer

    if not isinstance(engine._build_drop_info, Kept):
        engine._build_drop_info = Kept(engine._build_drop_info)
    return get_cached_tokenizer(tokenizer)


class Kept:
    """A function of two objects, which keeps what it returned for the same two; their contents need not be hashable."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._kept: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """With the objects themselves, whose ids are theirs as long as they live."""

    def __call__(self, first: Any, second: Any) -> Any:
        key = (id(first), id(second))
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (first, second, self._function(first, second))
        return self._kept[key][2]
