"""Cuts a document into chunks of tokens, at any token as the paper does or only between paragraphs.

A document of millions of tokens is tokenized block by block: only one block's tokens are in memory.
"""

from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from typing import Any

PARAGRAPH = "\n\n"
BLOCK_CHARACTERS = 1_000_000
"""Longest document that is tokenized as a whole; longer ones are split at paragraphs, where tokenizers split too."""
REMEMBERED_CHARACTERS = 50_000_000
"""Total length of the documents whose chunks a process remembers."""


class ChunkAt(Enum):
    """Places at which a document may be cut: after any token (the paper), or only between paragraphs."""

    token = "token"
    paragraph = "paragraph"


def split_document(text: str, *, tokenizer: Any, chunk_tokens: int, max_chunks: int, chunk_at: ChunkAt) -> tuple[str, ...]:
    """Splits a document into chunks of at most `chunk_tokens` tokens, in order.

    The middle of a document with more than `max_chunks` chunks is left out, as in the original code. With `ChunkAt.paragraph` a
    paragraph is cut only if it is longer than a chunk.
    """
    cut = _by_paragraphs if chunk_at is ChunkAt.paragraph else _by_tokens
    chunks = cut(text, tokenizer, chunk_tokens)
    if len(chunks) > max_chunks:
        head = max_chunks // 2
        chunks = chunks[:head] + chunks[len(chunks) - (max_chunks - head) :]
    return tuple(chunks)


class Splitter:
    """Caches the chunks of recent documents, because all rollouts of a group read the same one."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[Any, ...], tuple[str, ...]] = OrderedDict()
        self._characters = 0

    def split(self, text: str, *, tokenizer: Any, chunk_tokens: int, max_chunks: int, chunk_at: ChunkAt) -> tuple[str, ...]:
        """The chunks of a document as `split_document` makes them."""
        key = (id(tokenizer), hash(text), len(text), chunk_tokens, max_chunks, chunk_at)
        if key in self._chunks:
            self._chunks.move_to_end(key)
            return self._chunks[key]
        chunks = split_document(text, tokenizer=tokenizer, chunk_tokens=chunk_tokens, max_chunks=max_chunks, chunk_at=chunk_at)
        self._chunks[key] = chunks
        self._characters += sum(map(len, chunks))
        while self._characters > REMEMBERED_CHARACTERS:
            _, oldest = self._chunks.popitem(last=False)
            self._characters -= sum(map(len, oldest))
        return chunks


def _by_tokens(text: str, tokenizer: Any, chunk_tokens: int) -> list[str]:
    chunks: list[str] = []
    ids: list[int] = []
    for block in _blocks(text):
        ids += tokenizer.encode(block, add_special_tokens=False)
        whole = len(ids) - len(ids) % chunk_tokens
        chunks += [tokenizer.decode(ids[start : start + chunk_tokens]) for start in range(0, whole, chunk_tokens)]
        ids = ids[whole:]
    return [*chunks, tokenizer.decode(ids)] if ids else chunks


def _blocks(text: str) -> Iterator[str]:
    """Pieces of at most `BLOCK_CHARACTERS`, each but the last ending after a paragraph's separator if it holds one."""
    start = 0
    while len(text) - start > BLOCK_CHARACTERS:
        cut = text.rfind(PARAGRAPH, start, start + BLOCK_CHARACTERS)
        end = cut + len(PARAGRAPH) if cut >= start else start + BLOCK_CHARACTERS
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _by_paragraphs(text: str, tokenizer: Any, chunk_tokens: int) -> list[str]:
    pieces: list[str] = []
    for paragraph in filter(None, text.split(PARAGRAPH)):
        pieces += _by_tokens(paragraph, tokenizer, chunk_tokens)
    separator_tokens = len(tokenizer.encode(PARAGRAPH, add_special_tokens=False))
    chunks: list[str] = []
    used = 0
    for piece in pieces:
        length = len(tokenizer.encode(piece, add_special_tokens=False))
        if chunks and used + separator_tokens + length <= chunk_tokens:
            chunks[-1] += PARAGRAPH + piece
            used += separator_tokens + length
        else:
            chunks.append(piece)
            used = length
    return chunks
