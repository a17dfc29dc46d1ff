"""`renderers` of PrimeIntellect, which knows the template of Qwen3 by heart, agrees on prompts and on what comes between replies.

It is another implementation of what `vime.trajectory.template` finds out from the template itself.
"""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.qwen3_tokenizer import qwen3_tokenizer
from tests.trajectory.test_dialogue import SYSTEM, TOOLS, Played, reply, result, user
from vime.types import Message

TEXTS = ("", " ", "red", "früh 😀", "\n\n", "two\n", "\tthree  ", "{", '"', "42", "<b>", "</")
"""Without words of the template, which ours keeps plain text and theirs does not."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return qwen3_tokenizer()


def random_text(draw: random.Random) -> str:
    return "".join(draw.choice(TEXTS) for _ in range(draw.randint(0, 5)))


def random_reply(draw: random.Random, number: int) -> Message:
    calls = tuple(random_text(draw) for _ in range(draw.choice((0, 1, 1, 2))))
    return reply(f"{number}{random_text(draw)}", thinks=draw.choice(("", "Hm.")), calls=calls)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_prompts_are_those_of_another_implementation(tokenizer: Any, seed: int):
    from renderers import Qwen3Renderer, Qwen3RendererConfig

    draw = random.Random(seed)
    played, renderer = Played(tokenizer), Qwen3Renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
    tools: Any = draw.choice((None, TOOLS))
    messages = [*draw.choice(([], [SYSTEM])), user(random_text(draw))]
    prompt = played.ask(messages, random_reply(draw, 0), tools=tools)
    assert list(prompt.ids) == renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    for number in range(1, draw.randint(2, 6)):
        before, held = played.asked[-1]
        said = held.message
        results = [result(call["id"], random_text(draw)) for call in said.get("tool_calls", ())]
        new = results or [user(random_text(draw))]
        messages = [*messages, said, *new]
        prompt = played.ask(messages, random_reply(draw, number), tools=tools)
        if prompt.parent is None:
            assert list(prompt.ids) == renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        else:
            assert prompt.parent is held
            bridged = renderer.bridge_to_next_turn(list(before.ids), list(held.turn.output_ids), new, tools=tools)
            assert bridged is not None and list(prompt.ids) == bridged.token_ids
