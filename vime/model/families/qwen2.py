"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): biases of queries, keys and values."""

from vime.model.families import ModelFamily

FAMILY = ModelFamily(
    config_class="Qwen2Config",
    qkv_bias=True,
    allowed=("attention_bias",),
    tokenizer="qwen2.5",
    test_shape={"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
)
