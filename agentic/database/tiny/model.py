"""Builds the start of the tiny database model: a tokenizer of whole words and bytes, and random Qwen weights.

    python -m agentic.database.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

from transformers import Qwen2Tokenizer

from agentic.database.tiny import demonstrations
from vime.tiny import tiny_model

ROLES = ("system", "user", "assistant", "tool")


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word of the task's texts."""
    words = tiny_model.words_of([*demonstrations.texts(), *ROLES])
    return tiny_model.build_tokenizer(words, chat_template=tiny_model.SHORT_CHAT_TEMPLATE)


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
