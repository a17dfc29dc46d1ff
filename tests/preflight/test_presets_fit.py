"""Every preset and experiment fits its GPUs by the plan's memory, or says that it recomputes and fits with that."""

from pathlib import Path

import pytest

from vime.memory.processes import trainer_memory
from vime.preflight.compose import CONF, compose_run
from vime.preflight.plan.planned_processes import memory

EXPERIMENTS = sorted(path.stem for path in (Path(CONF) / "experiment").glob("*.yaml"))
MODELS = sorted(path.stem for path in (Path(CONF) / "model").glob("*.yaml"))
PRESETS = sorted(
    (path.parent.name, path.stem) for path in (Path(CONF) / "preset").glob("*/*.yaml") if "_" not in path.parent.name
)
CASES = [
    *([f"+experiment={name}"] for name in EXPERIMENTS),
    *([*([] if method == "none" else [f"+method={method}"]), f"model={model}"] for method, model in PRESETS),
    *(["+method=memagent", f"model={model}"] for model in MODELS),
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_it_fits_its_gpus(words: list[str]) -> None:
    lines = memory(compose_run([*words, "mode=plan"]).config)
    assert [line for line in lines if line.startswith("!")] == []
    assert any(line.startswith("each trainer rank, on each GPU of ") or line.startswith("each trainer rank: ") for line in lines)


def test_the_reference_is_in_host_memory_where_there_are_gpus() -> None:
    config = compose_run(["+experiment=memagent_paper_7b", "mode=plan"]).config
    assert config.algorithm.kl_coefficient > 0 and trainer_memory(config)["reference"] == 0
    assert [line for line in memory(config) if "host memory" in line and "reference 7.1 GiB" in line]


def test_what_is_recomputed_stands_in_the_plan() -> None:
    words = ["+experiment=memagent_paper_14b", "mode=plan"]
    told = memory(compose_run(words).config)
    assert [line for line in told if line.startswith("activation checkpointing")]
    assert [line for line in told if line.startswith("trainer.recompute=false would fit: ")]
    large = memory(compose_run([*words, "model=qwen2.5-32b"]).config)
    assert [line for line in large if line.startswith("trainer.recompute=false would not fit: ")]
    without = memory(compose_run([*words, "trainer.recompute=false"]).config)
    assert not [line for line in without if line.startswith(("activation checkpointing", "trainer.recompute=false"))]
