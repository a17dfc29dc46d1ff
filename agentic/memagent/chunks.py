"""Cuts a document into chunks of tokens, at any token as the paper does or only between paragraphs."""

from typing import Any

from agentic.memagent.config import ChunkAt

PARAGRAPH = "\n\n"


def split_document(text: str, *, tokenizer: Any, chunk_tokens: int, max_chunks: int, chunk_at: ChunkAt) -> tuple[str, ...]:
    """Chunks of at most `chunk_tokens` tokens, in order.

    A document of more than `max_chunks` chunks loses its middle (the original's centre truncation). With
    `ChunkAt.paragraph` a paragraph is cut only if it is longer than a chunk.
    """
    cut = _by_paragraphs if chunk_at is ChunkAt.paragraph else _by_tokens
    chunks = cut(text, tokenizer, chunk_tokens)
    if len(chunks) > max_chunks:
        head = max_chunks // 2
        chunks = chunks[:head] + chunks[len(chunks) - (max_chunks - head) :]
    return tuple(chunks)


def _by_tokens(text: str, tokenizer: Any, chunk_tokens: int) -> list[str]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [tokenizer.decode(ids[start : start + chunk_tokens]) for start in range(0, len(ids), chunk_tokens)]


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
