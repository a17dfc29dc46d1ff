"""The random model of a rehearsal: a Hugging Face folder with the shape that the configuration gives it, and a tokenizer.

The tokenizer is the family's own where it can be had here: Qwen3's, by a package. Qwen2.5 has the same tokens but for a few
control tokens; it gets Qwen3's tokenizer with a chat template in Qwen2.5's form. Any other model gets bytes.
"""

import subprocess
from pathlib import Path
from typing import Any

from vime.config import ModelConfig
from vime.model.families import family_of
from vime.rehearsal.shrink import own_positions
from vime.tiny import qwen3_tokenizer, tiny_model

NUM_QWEN_TOKENS = 151669
SEED = 0


def write_model(folder: Path, model: ModelConfig) -> str:
    """Writes the model and returns, in words, which tokenizer it has."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer, words = tokenizer_of(model)
    config = architecture(model, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    made.generation_config.eos_token_id = tokenizer.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return words


def tokenizer_of(model: ModelConfig) -> tuple[Any, str]:
    """The tokenizer for a model, and which one it is in words."""
    from transformers import Qwen2Tokenizer

    family = family_of(model.family)
    if family.tokenizer is not None and model.vocab_size >= NUM_QWEN_TOKENS:
        try:
            loaded: Any = Qwen2Tokenizer.from_pretrained(qwen3_tokenizer.fetched())
        except (OSError, subprocess.SubprocessError):
            words = "tokenizer: bytes and a short chat template, because Qwen3's cannot be fetched"
            return tiny_model.tokenizer_of_texts([]), words
        if family.tokenizer == "qwen3":
            return loaded, "tokenizer: Qwen3's own, with its chat template"
        loaded.chat_template = tiny_model.CHAT_TEMPLATE
        return loaded, "tokenizer: Qwen3's, which has Qwen2.5's tokens, with a chat template in Qwen2.5's form"
    tokenizer = tiny_model.build_tokenizer(tiny_model.ROLES, chat_template=tiny_model.CHAT_TEMPLATE)
    return tokenizer, f"tokenizer: bytes in place of that of {model.name}, which cannot be had here"


def architecture(model: ModelConfig, tokenizer: Any) -> Any:
    """The `config.json` of the model, by the class that transformers has for its family."""
    import transformers

    family = family_of(model.family)
    theta = model.rope_parameters.get("rope_theta", family.rope_theta)
    fields: dict[str, Any] = dict(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        max_position_embeddings=own_positions(model),
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=model.tie_word_embeddings,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    return getattr(transformers, family.config_class)(**(fields | family.random(model)))
