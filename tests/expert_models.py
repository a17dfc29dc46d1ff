"""Small random checkpoints of mixtures of experts, and the experts that Hugging Face's model chooses."""

from pathlib import Path
from typing import Any

import numpy as np
import torch


def save_experts(folder: Path, like: Path, *, scale: float = 1.0, **changed: Any) -> Path:
    """A checkpoint with experts, whose shape may be `changed`, and the tokenizer of another; `scale` multiplies their outputs."""
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": 257,
    } | changed
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "down_proj" in name:
                parameter.mul_(scale)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder


def chosen_experts(model: Any, tokens: list[int]) -> np.ndarray:
    """The experts of each token by Hugging Face's routers, [tokens, layers, experts of a token], each set in order of its ids."""
    found: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        found.append(logits.reshape(len(tokens), -1).topk(model.config.num_experts_per_tok, -1).indices.sort(-1).values)

    hooks = [layer.mlp.gate.register_forward_hook(keep) for layer in model.model.layers]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1).numpy()
