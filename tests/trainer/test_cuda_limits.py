"""What only a CUDA device or Transformer Engine would do, and nothing shows to be right, is refused by name."""

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
    ("settings", "has_transformer_engine", "refused"),
    [
        (INTERLEAVED, None, ["trainer.virtual_pipeline_parallel_size"]),
        (INTERLEAVED, True, ["trainer.virtual_pipeline_parallel_size"]),
        (CONTEXT, False, ["trainer.context_parallel_size"]),
        (CONTEXT, None, []),
        (CONTEXT, True, []),
        ({"precision": Precision.float32}, True, ["trainer.precision"]),
        ({"precision": Precision.float32}, False, []),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "recompute": True}, False, []),
    ],
)
def test_layouts_without_ground_are_refused_on_cuda(
    settings: dict[str, Any], has_transformer_engine: bool | None, refused: list[str]
) -> None:
    problems = cuda_problems(TrainerConfig(**settings), has_transformer_engine=has_transformer_engine)
    assert [problem.key for problem in problems] == refused


def test_a_plan_refuses_an_interleaved_pipeline_on_gpus_and_leaves_one_without_gpus() -> None:
    words = ["+method=memagent", "mode=plan"]
    layout = ["trainer.pipeline_parallel_size=2", "trainer.virtual_pipeline_parallel_size=2"]
    on_gpus = compose_run([*words, "model=qwen2.5-7b", *layout]).config
    assert [problem.key for problem in find_problems(on_gpus)] == ["trainer.virtual_pipeline_parallel_size"]
    assert cuda.layouts(compose_run([*words, *layout]).config) == []


def test_context_parallelism_on_this_machines_gpus_needs_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose_run(["+method=memagent", "mode=plan", "model=qwen2.5-7b", "trainer.context_parallel_size=2"]).config
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert [problem.key for problem in cuda.transformer_engine(config)] == ["trainer.context_parallel_size"]
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    assert cuda.transformer_engine(config) == []


def test_a_trainer_rank_refuses_it_as_well(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    from vime.errors import ConfigError
    from vime.trainer import cpu_shim

    cpu_shim.install()
    from vime.model.architecture import read_architecture
    from vime.trainer.megatron_config import transformer_config

    architecture = read_architecture(models("qwen3"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="context_parallel_size"):
        transformer_config(architecture, TrainerConfig(context_parallel_size=2, tensor_parallel_size=1))


def test_whole_heads_are_what_grouped_queries_see() -> None:
    from vime.trainer import cpu_shim

    cpu_shim.install()
    from vime.trainer.attention import whole_heads

    query, (key, value) = torch.randn(1, 6, 5, 4), (torch.randn(1, 2, 5, 4) for _ in range(2))
    grouped = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    whole = F.scaled_dot_product_attention(query, whole_heads(key, 6), whole_heads(value, 6), is_causal=True)
    torch.testing.assert_close(whole, grouped)
