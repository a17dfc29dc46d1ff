"""Features that only a CUDA device would use, and that no test proves, are refused by name."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vime.config import Precision, TrainerConfig
from vime.preflight.compose import compose_run
from vime.preflight.rules import cuda
from vime.preflight.validation import find_problems
from vime.trainer.cuda_limits import cuda_problems

INTERLEAVED = {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2}
CONTEXT = {"context_parallel_size": 2}


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (INTERLEAVED, ["trainer.virtual_pipeline_parallel_size"]),
        (CONTEXT, []),
        ({"precision": Precision.float32}, []),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "recompute": True}, []),
    ],
)
def test_layouts_without_ground_are_refused_on_cuda(settings: dict[str, Any], refused: list[str]) -> None:
    assert [problem.key for problem in cuda_problems(TrainerConfig(**settings))] == refused


def test_a_plan_refuses_an_interleaved_pipeline_on_gpus_and_leaves_one_without_gpus() -> None:
    words = ["+method=memagent", "mode=plan"]
    layout = ["trainer.pipeline_parallel_size=2", "trainer.virtual_pipeline_parallel_size=2"]
    on_gpus = compose_run([*words, "model=qwen2.5-7b", *layout]).config
    assert [problem.key for problem in find_problems(on_gpus)] == ["trainer.virtual_pipeline_parallel_size"]
    assert cuda.layouts(compose_run([*words, *layout]).config) == []


def test_a_trainer_rank_refuses_it_as_well(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    from vime.errors import ConfigError
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.model.architecture import read_architecture
    from vime.trainer.megatron_config import transformer_config

    architecture = read_architecture(models("qwen3"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="virtual_pipeline_parallel_size"):
        transformer_config(architecture, TrainerConfig(pipeline_parallel_size=2, virtual_pipeline_parallel_size=2))


def test_whole_heads_are_what_grouped_queries_see() -> None:
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.trainer.attention import whole_heads

    query, (key, value) = torch.randn(1, 6, 5, 4), (torch.randn(1, 2, 5, 4) for _ in range(2))
    grouped = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    whole = F.scaled_dot_product_attention(query, whole_heads(key, 6), whole_heads(value, 6), is_causal=True)
    torch.testing.assert_close(whole, grouped)
