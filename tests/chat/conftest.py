"""Qwen3's tokenizer, and the reader of its replies."""

from tests.gateway.conftest import reader, tokenizer

__all__ = ["reader", "tokenizer"]
