"""Training in 8-bit floats: products of linear layers by Transformer Engine, scaled by one of Megatron-core's recipes.

Weights and gradients stay in the run's precision; inputs, weights and gradients of a product are rounded for it (arXiv
2209.05433). Not run so far: it needs a GPU for which Transformer Engine is built.
"""

from typing import Any

from megatron.core.transformer.spec_utils import ModuleSpec

from vime.config import Fp8Config, Fp8Recipe
from vime.errors import ConfigError, Problem


def fields(fp8: Fp8Config) -> dict[str, Any]:
    """Fields of Megatron's configuration."""
    if fp8.recipe is Fp8Recipe.none:
        return {}
    first, last = fp8.num_first_bf16_layers, fp8.num_last_bf16_layers
    return {
        "fp8": "e4m3" if fp8.recipe is Fp8Recipe.blockwise else "hybrid",  # gradients need a wide range where a scale is shared
        "fp8_recipe": fp8.recipe.value,
        "first_last_layers_bf16": first + last > 0,
        "num_layers_at_start_in_bf16": first,
        "num_layers_at_end_in_bf16": last,
    }


def use_engine(spec: ModuleSpec, recipe: str) -> None:
    """Makes the linear layers of a layer's specification Transformer Engine's. Raises `ConfigError` where it is not installed."""
    from megatron.core.extensions import transformer_engine as engine

    if not engine.HAVE_TE:
        remedy = "Transformer Engine is not installed on this node: pip install 'transformer-engine[pytorch]', or use none"
        raise ConfigError([Problem(key="trainer.fp8.recipe", value=recipe, remedy=remedy)])
    layer: Any = spec.submodules
    attention, feed_forward = layer.self_attention.submodules, layer.mlp.submodules
    attention.linear_qkv = feed_forward.linear_fc1 = engine.TEColumnParallelLinear
    attention.linear_proj = feed_forward.linear_fc2 = engine.TERowParallelLinear
