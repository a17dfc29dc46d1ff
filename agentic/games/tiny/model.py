"""Builds the start of the games' tiny model: a tokenizer of whole words and bytes, and random Qwen weights.

    python -m agentic.games.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from agentic.games.tiny import demonstrations
from vime.tiny import tiny_model

NUM_TOKENS = 384
"""Rows of the embedding, as in `conf/experiment/nim_tiny.yaml`."""


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word of the games."""
    return tiny_model.tokenizer_of_texts(demonstrations.texts())


def build_model(tokenizer: Qwen2Tokenizer, *, seed: int = 0) -> Qwen2ForCausalLM:
    """Return the untrained model of 0.16 million parameters in float32; the weights depend on the seed only."""
    assert len(tokenizer) <= NUM_TOKENS, f"{len(tokenizer)} tokens do not fit into {NUM_TOKENS}"
    vocabulary = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=NUM_TOKENS,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=tiny_model.MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=vocabulary[tiny_model.PAD],
        bos_token_id=None,
        eos_token_id=vocabulary[tiny_model.END],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.data.normal_(0, weight.shape[1] ** -0.5 if "embed" not in name else 0.1)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    return model


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer, build_model)
