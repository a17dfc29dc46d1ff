"""Qwen3 (arXiv 2505.09388): queries and keys are normalized per head."""

from vime.model.families import ModelFamily

FAMILY = ModelFamily(
    config_class="Qwen3Config", qk_norm=True, serves_vocabulary=True, tokenizer="qwen3", test_shape={"head_dim": 24}
)
