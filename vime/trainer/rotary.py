"""Scaled rotary embeddings: frequencies of Llama 3.1 (arXiv 2407.21783) and YaRN (arXiv 2309.00071) in Megatron's model.

Megatron-core's own YaRN discards the attention factor outside its attention. So the frequencies are those of transformers, put
into Megatron's unscaled embedding, and the attention factor multiplies cosines and sines as they are looked up (`fill_rotary`).
"""

from typing import Any

import torch
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import _yarn_get_concentration_factor_from_config
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from vime.model.architecture import ROPE_THETA, ROPE_TYPE, Architecture

YARN = "yarn"
FACTOR_OF_MEGATRON = "yarn_rotary_scaling_factor"
"""The attribute by which Megatron's attention recognizes YaRN; it is not a field of its configuration."""


def scale_rotary(model: GPTModel, architecture: Architecture) -> None:
    """Replaces the frequencies of a model that has not computed anything yet."""
    config: Any = model.config
    if architecture.rope_scaling[ROPE_TYPE] == YARN:
        setattr(config, FACTOR_OF_MEGATRON, float(architecture.rope_scaling["factor"]))
    rotary: Any = model.rotary_pos_emb
    frequencies, factor = inverse_frequencies(architecture)
    assert rotary.inv_freq.shape == frequencies.shape, f"{rotary.inv_freq.shape} frequencies, not {frequencies.shape}"
    assert abs(factor - attention_factor(config)) < 1e-9, f"attention factor {factor}, Megatron has {attention_factor(config)}"
    rotary.inv_freq = frequencies.to(rotary.inv_freq)


def inverse_frequencies(architecture: Architecture) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair of channels, [head_dim / 2], and the factor of cosines and sines."""
    from transformers import PretrainedConfig  # a second of imports, which a model without scaling does not need
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields: dict[str, Any] = dict(
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.max_position_embeddings,
        rope_parameters={ROPE_THETA: architecture.rope_theta, **architecture.rope_scaling},
    )
    config: Any = PretrainedConfig(**fields)
    return ROPE_INIT_FUNCTIONS[architecture.rope_scaling[ROPE_TYPE]](config, torch.device("cpu"))


def local_frequencies(architecture: Architecture) -> torch.Tensor:
    """Angle per position of each pair of channels in layers of local attention, [head_dim / 2], never scaled."""
    channels = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32)
    return 1.0 / architecture.local_rope_theta ** (channels / architecture.head_dim)


def attention_factor(config: TransformerConfig) -> float:
    """The factor of cosines and sines: 0.1 ln(factor) + 1 with YaRN (arXiv 2309.00071, equation 22), otherwise 1."""
    return _yarn_get_concentration_factor_from_config(config)
