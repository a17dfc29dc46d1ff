"""What servers in low precision sample is corrected in training, in one of several ways, or on purpose not at all."""

import pytest

from vime.preflight.compose import compose_run
from vime.preflight.plan.models import serving
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
