"""Builds the start of the tiny search model: a tokenizer of whole words and bytes, and random Qwen weights.

    python -m agentic.search_r1.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

from transformers import Qwen2Tokenizer

from agentic.search_r1.tiny import demonstrations
from vime.tiny import tiny_model


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word of the task's texts."""
    return tiny_model.tokenizer_of_texts(demonstrations.texts())


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
