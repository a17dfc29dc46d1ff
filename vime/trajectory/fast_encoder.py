"""`fast_encoder`: encodes texts by fastokens, in a few percent of the tokenizer's time, where it gives the same token ids.

Tokenizers of another kind than byte pairs encode by themselves, and so do all where fastokens is not built for the machine.
"""

import importlib
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Encode = Callable[[str], list[int]]
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
    """A function from a text to its ids, with nothing added at its ends; None if `tokenizer` has to encode by itself.

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
