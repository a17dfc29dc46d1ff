"""The bytes of every token, read from a checkpoint's `tokenizer.json` without transformers.

Joining bytes is some twenty times as fast as a tokenizer's `decode`, control tokens stay visible, and a character that two tokens
share is not lost. It holds for tokenizers that work on bytes, as those of all supported families do.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from vime.types import Integers

logger = logging.getLogger(__name__)

ENCODING = "latin-1"
"""One character for each byte, in `to_list`."""


class TokenPieces:
    """The bytes of each token by its id.

    Example: `TokenPieces([b"Hel", b"lo", b"<|im_end|>"]).text([0, 1, 2]) == "Hello<|im_end|>"`.
    """

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, checkpoint: str | Path) -> "TokenPieces | None":
        """The pieces of a checkpoint, a folder or a Hugging Face id; None without a `tokenizer.json` that works on bytes."""
        file = _file(checkpoint)
        if file is None:
            return None
        raw = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = raw["model"].get("vocab")
        if not isinstance(vocabulary, dict) or not _is_on_bytes(raw.get("decoder")):
            return None
        to_byte = {character: byte for byte, character in _characters().items()}
        added = {entry["id"]: entry["content"] for entry in raw.get("added_tokens", [])}
        pieces = [b""] * (1 + max([*vocabulary.values(), *added]))
        for token, index in vocabulary.items():
            pieces[index] = bytes(to_byte[c] for c in token) if all(c in to_byte for c in token) else token.encode()
        for index, token in added.items():
            pieces[index] = token.encode()
        return cls(pieces)

    @classmethod
    def from_list(cls, pieces: list[str]) -> "TokenPieces":
        """Reads `to_list`."""
        return cls([piece.encode(ENCODING) for piece in pieces])

    def to_list(self) -> list[str]:
        """One text for each token, with a character for each of its bytes."""
        return [piece.decode(ENCODING) for piece in self._pieces]

    def bytes_of(self, ids: Integers) -> list[bytes]:
        """The bytes of each token; an id outside the vocabulary, which a padded model may sample, has none."""
        known = len(self._pieces)
        return [self._pieces[index] if index < known else b"" for index in np.asarray(ids).tolist()]

    def text(self, ids: Integers) -> str:
        """The text of a sequence; bytes that make no character become the replacement character."""
        return b"".join(self.bytes_of(ids)).decode("utf-8", errors="replace")


def _file(checkpoint: str | Path) -> Path | None:
    """The checkpoint's `tokenizer.json`; None if there is none or it cannot be fetched."""
    if Path(checkpoint).is_dir():
        file = Path(checkpoint) / "tokenizer.json"
        return file if file.exists() else None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(str(checkpoint), "tokenizer.json"))
    except (OSError, ValueError) as error:  # texts of turns are no reason to end a run
        logger.warning("turns are written without their texts: %s has no tokenizer.json within reach (%s)", checkpoint, error)
        return None


def _is_on_bytes(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == "ByteLevel" or any(map(_is_on_bytes, decoder.get("decoders", [])))


def _characters() -> dict[int, str]:
    """The printable character that byte-level vocabularies write for each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + number) for number, byte in enumerate(others)}
