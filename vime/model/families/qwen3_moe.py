"""Qwen3's mixture of experts (arXiv 2505.09388)."""

from typing import Any

from vime.config import ModelConfig
from vime.model.families import ModelFamily


def experts(model: ModelConfig) -> dict[str, Any]:
    """The experts of a random model."""
    return {
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_token,
        "moe_intermediate_size": model.moe_intermediate_size,
        "norm_topk_prob": True,
    }


FAMILY = ModelFamily(
    config_class="Qwen3MoeConfig",
    serves_vocabulary=True,
    qk_norm=True,
    random=experts,
    tokenizer="qwen3",
    test_shape={
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
)
