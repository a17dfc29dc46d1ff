"""Reading replies: what is counted as reasoning."""

import random
from typing import Any

import pytest

from tests.gateway.scripted import user
from vime.chat.reply_reader import ReplyReader
from vime.chat.request import ChatRequest

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

PIECES = (
    "<think>",
    "</think>",
    "\n",
    "Hm. ",
    "früh 😀",
    "<tool_call>",
    "</tool_call>",
    '{"name": "a", "arguments": {}}',
    "two words",
)


def test_reasoning_of_a_whole_reply_is_counted_as_the_parser_counts_all_of_it(tokenizer: Any, reader: ReplyReader):
    draw, counts = random.Random(0), set()
    for _ in range(300):
        written = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 9)))
        ids = tokenizer.encode(f"{written}<|im_end|>", add_special_tokens=False)
        reading = reader.begin(ChatRequest(messages=[user("?")]), [])
        reading.whole(ids, stopped=True)
        expected = (
            reader._make_parser(reader._parser_class, []).count_reasoning_tokens(ids)
            if "reasoning_content" in reading.message
            else 0
        )
        assert reading.num_reasoning_tokens(ids) == expected, written
        counts.add(expected)
    assert len(counts) > 5
