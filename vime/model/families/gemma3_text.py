"""Gemma 3 (arXiv 2503.19786), the text models: norms on both sides of attention and feed-forward network, a gate of GELU, and
five layers of local attention for each one of global attention, with rotary embeddings of their own.
"""

from typing import Any

from vime.config import ModelConfig
from vime.model.families import ModelFamily

LOCAL, GLOBAL = "sliding_attention", "full_attention"
THETA = {LOCAL: 10_000.0, GLOBAL: 1_000_000.0}


def rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the rotary embeddings of global attention."""
    own = raw.get("rope_parameters") or {}
    given = own.get(GLOBAL) or {"rope_theta": raw.get("rope_theta"), **(raw.get("rope_scaling") or {})}
    return {**given, "rope_theta": given.get("rope_theta") or THETA[GLOBAL]}


def read(raw: dict[str, Any]) -> dict[str, Any]:
    """Local attention, its rotary embeddings, and the scale of the scores."""
    own, pattern = (raw.get("rope_parameters") or {}).get(LOCAL) or {}, raw.get("sliding_window_pattern", 6)
    types = raw.get("layer_types") or [
        GLOBAL if number % pattern == 0 else LOCAL for number in range(1, raw["num_hidden_layers"] + 1)
    ]
    return {
        "window": raw.get("sliding_window") or 4096,
        "local_layers": [kind == LOCAL for kind in types],
        "local_rope_theta": own.get("rope_theta") or raw.get("rope_local_base_freq") or THETA[LOCAL],
        "softmax_scale": raw.get("query_pre_attn_scalar", 256) ** -0.5,
        "tie_word_embeddings": raw.get("tie_word_embeddings", True),
    }


def random(model: ModelConfig) -> dict[str, Any]:
    """The rotary embeddings of a random model."""
    kinds = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in THETA.items()}
    return {"rope_parameters": kinds, "query_pre_attn_scalar": model.head_dim}


FAMILY = ModelFamily(
    config_class="Gemma3TextConfig",
    qk_norm=True,
    post_norms=True,
    norm_adds_one=True,
    scales_embeddings=True,
    activation="gelu_tanh",
    rope=rope,
    read=read,
    random=random,
    tensors={
        "self_attention.linear_proj.post_norm.weight": "post_attention_layernorm.weight",
        "pre_mlp_layernorm.weight": "pre_feedforward_layernorm.weight",
        "mlp.linear_fc2.post_norm.weight": "post_feedforward_layernorm.weight",
    },
    refused={
        "final_logit_softcapping": "logits without a cap",
        "attn_logit_softcapping": "scores without a cap",
        "use_bidirectional_attention": "causal attention",
    },
    test_shape={"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
)
