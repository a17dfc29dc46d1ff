"""The text of a reply while its tokens arrive: characters appear as soon as their last token is there."""

from typing import Any

from tokenizers.decoders import DecodeStream


class ArrivingText:
    """Decodes the tokens of one reply; what has been said is never taken back.

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
