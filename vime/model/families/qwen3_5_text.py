"""Qwen3.5, the text models: linear attention by a gated delta net (arXiv 2412.06464), and in every fourth layer attention whose
output has a gate (arXiv 2505.06708) and whose rotary embeddings turn a part of each head.

Published checkpoints also hold an encoder of images and a layer that predicts a second token. The text model is a part of them;
`tools/convert_checkpoint.py text-model SOURCE FOLDER` writes it as a checkpoint of its own.
"""

from typing import Any

from vime.config import LinearAttentionConfig, ModelConfig
from vime.errors import ConfigError, Problem
from vime.model.families import ModelFamily

LINEAR, FULL = "linear_attention", "full_attention"
ROTARY_SHARE = 0.25


def rotary_share(raw: dict[str, Any]) -> float:
    """The share of a head's channels that rotary embeddings turn, from `config.json`."""
    return (raw.get("rope_parameters") or {}).get("partial_rotary_factor") or raw.get("partial_rotary_factor") or ROTARY_SHARE


def read(raw: dict[str, Any]) -> dict[str, Any]:
    """The linear layers, and the share of each head that is turned. Raises `ConfigError` for layers in another order."""
    number = raw["num_hidden_layers"]
    every = raw.get("full_attention_interval") or 4
    types = raw.get("layer_types")
    if types is not None:
        every = types.index(FULL) + 1 if FULL in types else number + 1
    linear = LinearAttentionConfig(
        full_every=every,
        num_key_heads=raw["linear_num_key_heads"],
        num_value_heads=raw["linear_num_value_heads"],
        key_head_dim=raw["linear_key_head_dim"],
        value_head_dim=raw["linear_value_head_dim"],
        conv_kernel=raw["linear_conv_kernel_dim"],
    )
    if types not in (None, pattern(linear, number)):
        remedy = f"use a checkpoint in which every n-th layer has {FULL}, and all others {LINEAR}"
        raise ConfigError([Problem(key="layer_types", value=types, remedy=remedy)])
    if raw.get("output_gate_type") not in (None, "silu", "swish"):
        raise ConfigError([Problem(key="output_gate_type", value=raw["output_gate_type"], remedy="only SiLU is supported")])
    return {"linear_attention": linear, "rotary_share": rotary_share(raw)}


def pattern(linear: LinearAttentionConfig, num_layers: int) -> list[str]:
    """The kinds of layers by their names in `config.json`."""
    return [LINEAR if linear.is_linear(layer) else FULL for layer in range(num_layers)]


def random(model: ModelConfig) -> dict[str, Any]:
    """The linear layers and rotary embeddings of a random model."""
    linear = model.linear_attention
    rope = {"rope_type": "default", "rope_theta": FAMILY.rope_theta, "partial_rotary_factor": ROTARY_SHARE}
    return {
        "layer_types": pattern(linear, model.num_layers),
        "linear_num_key_heads": linear.num_key_heads,
        "linear_num_value_heads": linear.num_value_heads,
        "linear_key_head_dim": linear.key_head_dim,
        "linear_value_head_dim": linear.value_head_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
        "rope_parameters": rope,
    }


FAMILY = ModelFamily(
    config_class="Qwen3_5TextConfig",
    serves_vocabulary=True,
    qk_norm=True,
    norm_adds_one=True,
    gates_attention=True,
    has_linear_attention=True,
    read=read,
    random=random,
    rope_theta=10_000_000.0,
    tokenizer="qwen3",
    refused={"layer_scale": "residuals without factors"},
    test_shape={
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
)
