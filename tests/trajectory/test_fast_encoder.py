"""Fast encoding: the ids are those of the tokenizer, whatever the text."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.trajectory import plain_text as module
from vime.trajectory.plain_text import SAMPLES, ControlTokens, fast_encoder

pytestmark = pytest.mark.slow
"""To make an encoder of so large a vocabulary takes some seconds."""

PIECES = (
    *SAMPLES,
    "<|im_end|>",
    "<think>",
    "<|im_",
    " the",
    "'s",
    "don't",
    "\n\n",
    "  ",
    "{\n",
    "fru\u0308h",
    "한국",
    "😀",
    "123",
)
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=12)), max_size=20).map("".join)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return qwen3_tokenizer()


@pytest.fixture(scope="module")
def encode(tokenizer: Any) -> Callable[[str], list[int]]:
    pytest.importorskip("fastokens")
    found = fast_encoder(tokenizer)
    assert found is not None
    return found


@settings(max_examples=500, deadline=None)
@given(text=TEXTS, more=TEXTS)
def test_a_text_and_what_it_grows_to_have_the_ids_that_the_tokenizer_gives_them(
    tokenizer: Any, encode: Callable[[str], list[int]], text: str, more: str
):
    for each in (text, text + more, more + text):
        assert encode(each) == tokenizer.encode(each, add_special_tokens=False)


def test_control_tokens_that_are_written_in_a_text_stay_text(tokenizer: Any):
    pytest.importorskip("fastokens")
    tokens = ControlTokens(tokenizer)
    texts = [f"a {word} b" for word in sorted(tokens.added)]
    before = [tokens.encode_plain(text) for text in texts]
    tokens.hasten()
    assert tokens._fast is not None
    assert [tokens.encode_plain(text) for text in texts] == before
    assert not any(map(tokens.count, before))


def test_a_tokenizer_that_is_not_read_or_read_differently_encodes_by_itself(tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    assert fast_encoder(SimpleNamespace(backend_tokenizer=words, added_tokens_decoder={})) is None
    assert fast_encoder(SimpleNamespace(backend_tokenizer=None)) is None
    monkeypatch.setattr(module, "_own", lambda backend, text: [0])
    assert fast_encoder(tokenizer) is None
