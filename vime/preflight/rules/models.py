"""The shape of the trained model."""

from vime.config import RunConfig
from vime.errors import Problem
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
