"""The shape of the trained model."""

from typing import Any

from vime.config import RunConfig
from vime.errors import Problem
from vime.model.architecture import ROPE_THETA, ROPE_TYPE, rope_problems, scaled_length
from vime.preflight.rules.numbers import must_divide


def heads(config: RunConfig) -> list[Problem]:
    """The heads divide evenly, and a mixture-of-experts model has all its sizes."""
    model = config.model
    problems = []
    groups = model.num_key_value_heads
    if groups > 0 and (remedy := must_divide(groups, {"model.num_attention_heads": model.num_attention_heads})):
        problems.append(Problem(key="model.num_key_value_heads", value=groups, remedy=remedy))
    if model.num_experts and not 0 < model.num_experts_per_token <= model.num_experts:
        remedy = f"must be from 1 to model.num_experts={model.num_experts}"
        problems.append(Problem(key="model.num_experts_per_token", value=model.num_experts_per_token, remedy=remedy))
    if model.num_experts and not model.moe_intermediate_size:
        remedy = f"must be at least 1 with model.num_experts={model.num_experts}: use the inner width of an expert"
        problems.append(Problem(key="model.moe_intermediate_size", value=model.moe_intermediate_size, remedy=remedy))
    if not model.checkpoint:
        remedy = "use a folder or a Hugging Face id, or choose a +method=, which brings a checkpoint for model=tiny"
        problems.append(Problem(key="model.checkpoint", value="", remedy=remedy))
    return problems


def rotary_embeddings(config: RunConfig) -> list[Problem]:
    """Scaled rotary embeddings have what their kind needs, and the model is not longer than they allow."""
    rope, key = config.model.rope_parameters, "model.rope_parameters"
    if not rope or (problems := scaling_problems(rope, key=key)):
        return problems if rope else []
    length = scaled_length(rope)
    if config.model.max_position_embeddings <= length:
        return []
    remedy = f"must be at most {length}, which is {key}.factor times {key}.original_max_position_embeddings"
    return [Problem(key="model.max_position_embeddings", value=config.model.max_position_embeddings, remedy=remedy)]


def scaling_problems(rope: dict[str, Any], *, key: str) -> list[Problem]:
    """Problems of rotary embeddings that replace a checkpoint's."""
    problems = rope_problems(rope, key=key)
    if not problems and rope[ROPE_TYPE] == "default":
        return [Problem(key=f"{key}.{ROPE_TYPE}", value="default", remedy=f"use yarn or llama3, or leave {key} empty")]
    if not problems and not rope.get(ROPE_THETA):
        return [Problem(key=f"{key}.{ROPE_THETA}", value=None, remedy="use the number of the checkpoint's config.json")]
    return problems
