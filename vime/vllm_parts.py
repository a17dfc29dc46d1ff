"""Everything that vime takes from vLLM outside of its processes, but for the transports of weights (`vime.weights.sender`).

The parsers that read replies, the request that they look at, and the arguments of a server. Each function imports vLLM when it is
called, because that takes seconds and much memory. Code that is loaded into vLLM's own processes is in `vime.inside_vllm`.
"""

import logging
from collections.abc import Callable
from typing import Any

MOST_KEPT = 64
"""Lexers that are kept; parsers whose configuration is a new object each time would otherwise fill the memory."""


def reply_parsers(tokenizer: Any, *, tool_parser: str | None, reasoning_parser: str | None) -> tuple[Any, Any]:
    """Classes of parsers of whole replies: with reasoning, and for replies that are constrained from their first token on.

    `tokenizer` is one of `parser_tokenizer`. Raises ValueError for a parser that vLLM does not have, or that does not fit it.
    """
    from vllm.parser.parser_manager import ParserManager

    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)  # a traceback for each call that a model botches
    try:
        with_reasoning, without = (
            ParserManager.get_parser(tool_parser, reasoning, True, tokenizer=tokenizer) for reasoning in (reasoning_parser, None)
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"tool_parser={tool_parser}, reasoning_parser={reasoning_parser}: {error}") from error
    return with_reasoning, without


def call_parser(name: str) -> Any:
    """The class of a parser of tool calls alone. Raises KeyError if vLLM has no such parser."""
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager.get_tool_parser(name)


def parsed_request(body: dict[str, Any]) -> Any:
    """The part of a request that parsers look at, as vLLM's own request. Raises ValueError for fields unknown to vLLM."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest.model_validate({"messages": [], "model": "", **body})


def parser_tokenizer(tokenizer: Any) -> Any:
    """A copy of a tokenizer that keeps its vocabulary. From now on this process prepares each kind of lexer once."""
    from vllm.parser.engine import streaming_parser_engine as engine
    from vllm.tokenizers.hf import get_cached_tokenizer

    if not isinstance(engine._build_drop_info, PairCache):
        engine._build_drop_info = PairCache(engine._build_drop_info)
    return get_cached_tokenizer(tokenizer)


def server_arguments() -> dict[str, list[str] | None]:
    """Names of all arguments of `vllm serve`, as `block_size`, with the values to choose from or None."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found: dict[str, list[str] | None] = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        choices = [str(choice) for choice in action.choices] if action.choices is not None else None
        for flag in action.option_strings:
            if flag.startswith("--"):
                found[flag.removeprefix("--").replace("-", "_")] = choices
    return found


class PairCache:
    """A function of two objects that caches its result for the same two objects; their contents may be unhashable."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._kept: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """Results by the ids of both objects, with the objects themselves, so that their ids stay valid."""

    def __call__(self, first: Any, second: Any) -> Any:
        key = (id(first), id(second))
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (first, second, self._function(first, second))
        return self._kept[key][2]
