"""gpt-oss (arXiv 2508.10925): a mixture of experts with biases everywhere, sinks in attention, local attention in every second
layer, and a clamped gate.

Checkpoints have the experts of a layer in one tensor, gate and up projections row by row in turn. The published ones have experts
of 4-bit floats (MXFP4); trained is one in bfloat16.
"""

from typing import Any

from vime.config import ModelConfig
from vime.errors import ConfigError, Problem
from vime.model.families import ModelFamily

LOCAL, GLOBAL = "sliding_attention", "full_attention"
ALPHA = 1.702
"""The gate is x · sigmoid(ALPHA · x); vLLM's has no other."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotary embeddings of the published models."""


def read(raw: dict[str, Any]) -> dict[str, Any]:
    """Local attention, and the experts, whose width is that of the feed-forward network.

    Raises `ConfigError` for another gate.
    """
    if (alpha := raw.get("swiglu_alpha", ALPHA)) != ALPHA:
        raise ConfigError([Problem(key="swiglu_alpha", value=alpha, remedy=f"not supported; use a checkpoint with {ALPHA}")])
    types = raw.get("layer_types") or [GLOBAL if number % 2 else LOCAL for number in range(raw["num_hidden_layers"])]
    return {
        "window": raw.get("sliding_window") or 128,
        "local_layers": [kind == LOCAL for kind in types],
        "gate_limit": raw.get("swiglu_limit", 7.0),
        "moe_intermediate_size": raw["intermediate_size"],
        "norm_topk_prob": True,
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-5),
    }


def random(model: ModelConfig) -> dict[str, Any]:
    """The experts of a random model, and scaled rotary embeddings, without which vLLM's class cannot be made."""
    return {
        "num_local_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_token,
        "intermediate_size": model.moe_intermediate_size,
        "rope_parameters": YARN,
    }


FAMILY = ModelFamily(
    config_class="GptOssConfig",
    qkv_bias=True,
    has_biases=True,
    has_sinks=True,
    stacks_experts=True,
    activation="quick_gelu",
    read=read,
    random=random,
    allowed=("attention_bias",),
    refused={
        "quantization_config": "weights in bfloat16, for example lmsys/gpt-oss-20b-bf16",
        "tie_word_embeddings": "an output head of its own, as vLLM wants",
    },
    tensors={
        "self_attention.linear_proj.bias": "self_attn.o_proj.bias",
        "mlp.router.weight": "mlp.router.weight",
        "mlp.router.bias": "mlp.router.bias",
    },
    test_shape={"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.5},
)
