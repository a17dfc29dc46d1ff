"""What servers in low precision sample is corrected in training, in one of several ways, or on purpose not at all."""

import pytest

from vime.preflight.compose import compose_run
from vime.preflight.plan.models import serving
from vime.preflight.plan.steps import summary
from vime.preflight.rules import low_precision
from vime.preflight.validation import find_problems

TINY = ["+method=memagent", "mode=plan"]
LOW = ["serving.models.actor.quantization=int8"]


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=score_centering"],
        ["algorithm=cispo"],
        ["algorithm=dppo"],
        ["algorithm.correction.mode=truncate", "algorithm.old_logprobs=trainer"],
        ["algorithm.correction.mode=mask", "algorithm.old_logprobs=trainer"],
        ["algorithm.correction.allow_none=true"],
    ],
)
def test_each_correction_is_enough(words: list[str]):
    assert find_problems(compose_run([*TINY, *LOW, *words]).config) == []
    assert low_precision.correction(compose_run([*TINY, *LOW]).config) != []


def test_the_plan_names_the_formats():
    config = compose_run([*TINY, *LOW, "serving.models.actor.kv_cache_dtype=fp8", "algorithm=score_centering"]).config
    (line,) = [line for line in serving(config) if line.startswith("actor")]
    assert "int8, quantized by the trainer; keys and values in fp8" in line
    assert "int8" not in serving(compose_run(TINY).config)[0]


def test_a_processor_without_the_instructions_keeps_no_8_bit_cache(monkeypatch: pytest.MonkeyPatch, tmp_path):
    config = compose_run([*TINY, "serving.models.actor.kv_cache_dtype=fp8", "algorithm=score_centering"]).config
    monkeypatch.setattr(low_precision, "PROCESSOR", tmp_path / "cpuinfo")
    for flags, number in (("fpu avx2", 1), ("fpu avx512f", 0), ("fpu amx_tile", 0)):
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
        assert len(low_precision.processor(config)) == number, flags


def test_a_trainer_with_the_same_integers_needs_no_correction():
    config = compose_run([*TINY, *LOW, "trainer.quantization=int8"]).config
    assert find_problems(config) == []
    assert "the servers compute with the same integers" in " ".join(summary(config))
    config = compose_run([*TINY, *LOW, "trainer.quantization=int8", "trainer.precision=bfloat16"]).config
    assert [problem.key for problem in find_problems(config)] == ["algorithm.correction.mode"]
    config = compose_run([*TINY, "trainer.quantization=int4"]).config
    assert find_problems(config) == []
    assert "int4" in " ".join(summary(config))


def test_8_bit_floats_are_planned_and_want_transformer_engine():
    words = ["+method=memagent", "model=qwen2.5-7b", "cluster=one_node", "mode=plan", "trainer.fp8.recipe=blockwise"]
    config = compose_run([*words, "trainer.fp8.num_first_bf16_layers=1"]).config
    assert find_problems(config) == []
    assert "FP8 by Transformer Engine (blockwise), without the first 1 and the last 0 layers" in " ".join(summary(config))
    (problem,) = low_precision.engine(config)
    assert problem.key == "trainer.fp8.recipe" and "transformer-engine" in problem.remedy


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.fp8.recipe=delayed", "trainer.fp8.num_last_bf16_layers=1"],
        ["trainer.fp8.recipe=tensorwise", "trainer.precision=float32"],
        ["trainer.fp8.recipe=tensorwise", "trainer.fp8.num_last_bf16_layers=28"],
        ["trainer.fp8.recipe=tensorwise", "trainer.lora.rank=8"],
        ["trainer.fp8.recipe=tensorwise", "trainer.quantization=int4"],
        ["trainer.fp8.recipe=tensorwise", "algorithm.critic.place=trunk"],
    ],
)
def test_8_bit_floats_go_with_few_others(words: list[str]):
    config = compose_run(["+method=memagent", "model=qwen2.5-7b", "cluster=one_node", "mode=plan", *words]).config
    assert [problem.key for problem in low_precision.floats(config)] == ["trainer.fp8.recipe"]
