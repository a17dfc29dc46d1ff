"""The trained model's shape."""

from vime.config import RunConfig
from vime.errors import Problem


def heads(config: RunConfig) -> list[Problem]:
    """Query heads share key-value heads evenly, and experts are complete."""
    model = config.model
    problems = []
    if model.num_key_value_heads > 0 and model.num_attention_heads % model.num_key_value_heads:
        remedy = f"must divide model.num_attention_heads={model.num_attention_heads}"
        problems.append(Problem(key="model.num_key_value_heads", value=model.num_key_value_heads, remedy=remedy))
    if model.num_experts and not 0 < model.num_experts_per_token <= model.num_experts:
        remedy = f"give 1 to model.num_experts={model.num_experts}"
        problems.append(Problem(key="model.num_experts_per_token", value=model.num_experts_per_token, remedy=remedy))
    if model.num_experts and not model.moe_intermediate_size:
        remedy = "give the width of one expert"
        problems.append(Problem(key="model.moe_intermediate_size", value=model.moe_intermediate_size, remedy=remedy))
    if not model.checkpoint:
        remedy = "give a folder or a Hugging Face id; a method brings one for model=tiny"
        problems.append(Problem(key="model.checkpoint", value="", remedy=remedy))
    return problems
