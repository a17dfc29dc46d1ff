"""Builds the start of the tiny ReTool model: a tokenizer of whole words, digits and bytes, and random Qwen weights.

    python -m agentic.retool.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

from transformers import Qwen2Tokenizer

from agentic.retool.tiny import demonstrations
from vime.tiny import tiny_model


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word of the task's texts."""
    return tiny_model.tokenizer_of_texts(demonstrations.texts())


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
