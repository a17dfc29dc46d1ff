"""Reads a GGUF file, llama.cpp's format for quantized models, as a Hugging Face folder with dequantized weights."""

from pathlib import Path
from typing import Any

from vime.errors import CheckpointError

PRE_TOKENIZER = "tokenizer.ggml.pre"
DIGIT_BY_DIGIT = ("smollm",)
"""Names of pre-tokenizers that take a number apart into its digits, which transformers does not read from the file."""


def from_gguf(file: Path, target: Path) -> None:
    """Writes configuration, tokenizer and float32 weights. Raises `CheckpointError`.

    Quantization is not undone: the weights are those that the file's few bits represent.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not file.is_file() or file.suffix != ".gguf":
        raise CheckpointError(f"{file} is no GGUF file: give a file whose name ends in .gguf")
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, gguf_file=file.name)
    except (KeyError, NotImplementedError, ValueError) as error:
        raise CheckpointError(f"transformers cannot read {file}: {error}") from error
    if pre_tokenizer_of(file) in DIGIT_BY_DIGIT:
        split_digits(tokenizer)
    del model.config.quantization_config  # of the file; the weights in the folder are plain
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def pre_tokenizer_of(file: Path) -> str:
    """llama.cpp's name of the file's pre-tokenizer; empty if the file has none."""
    from gguf import GGUFReader

    field = GGUFReader(file).get_field(PRE_TOKENIZER)
    return "" if field is None else str(field.contents())


def split_digits(tokenizer: Any) -> None:
    """Makes every digit a token of its own, before words are split."""
    from tokenizers.pre_tokenizers import Digits, Sequence

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
