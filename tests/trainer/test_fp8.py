"""Training in 8-bit floats as far as it goes without a GPU: Megatron's fields, rows that fit, and the missing package."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vime.config import Fp8Config, Fp8Recipe, RunConfig
from vime.errors import ConfigError
from vime.model.architecture import read_architecture
from vime.trainer.shard import FP8_TOKENS, RowShare


@pytest.mark.parametrize("recipe", list(Fp8Recipe)[1:], ids=lambda recipe: recipe.value)
def test_megatron_gets_the_recipe_and_rows_fit_it(
    world: None, models: Callable[..., Path], make_config: Callable[..., RunConfig], recipe: Fp8Recipe
) -> None:
    from vime.trainer.megatron_config import transformer_config

    left = 0 if recipe is Fp8Recipe.delayed else 1
    fp8 = Fp8Config(recipe=recipe, num_first_bf16_layers=left)
    trainer = make_config(models("qwen3"), precision="bfloat16", fp8=fp8, tensor_parallel_size=2).trainer
    found = transformer_config(read_architecture(models("qwen3")), trainer)
    assert found.fp8 in ("e4m3", "hybrid") and found.fp8_recipe == recipe.value
    assert found.first_last_layers_bf16 == (left > 0) and found.num_layers_at_start_in_bf16 == left
    assert found.num_layers_at_end_in_bf16 == 0
    assert sum(RowShare.of(trainer).fill([5, 30])) == 2 * 2 * FP8_TOKENS, "on each of two ranks"


def test_a_node_without_transformer_engine_says_so(
    world: None, models: Callable[..., Path], make_config: Callable[..., RunConfig]
) -> None:
    from vime.trainer.model import build_model

    trainer = make_config(models("qwen3"), precision="bfloat16", fp8=Fp8Config(recipe=Fp8Recipe.tensorwise)).trainer
    with pytest.raises(ConfigError, match="Transformer Engine is not installed on this node"):
        build_model(read_architecture(models("qwen3")), trainer)
