"""Peak memory of every recipe at true size on a CUDA device that is not there, beside the plan and the card."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from tests.cuda import device
from tests.cuda.peaks import GIB, Peak, measure, offered, table

pytestmark = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "")
RESULTS = Path(__file__).parents[2] / "results"
NEAR = 0.05


def rows() -> list[Peak]:
    """The rows of `results/gpu_memory.json`."""
    return [Peak(**row) for row in json.loads((RESULTS / "gpu_memory.json").read_text())]


def assert_fits(peak: Peak) -> None:
    """The plan is near the peak, and leaves its reserve on the card."""
    assert peak.peak == pytest.approx(peak.planned, rel=NEAR), (
        f"{peak.planned / GIB:.1f} GiB planned, {peak.peak / GIB:.1f} found"
    )
    assert peak.free >= 0 and not peak.problems
    if peak.planned_pinned:
        assert peak.pinned == pytest.approx(peak.planned_pinned, rel=NEAR)


@pytest.mark.long
def test_a_recipe_takes_what_its_plan_says() -> None:
    assert_fits(measure("memagent_lora_qwen3_8b", "one_gpu"))


@pytest.mark.long
def test_a_critic_takes_what_its_plan_says() -> None:
    assert_fits(measure("qwen2.5-3b", "one_node", "algorithm=ppo"))


def test_all_recipes_are_measured_and_fit_their_cards() -> None:
    found = rows()
    assert [(row.model, row.cluster) for row in found] == offered()
    for row in found:
        assert_fits(row)
    assert (RESULTS / "gpu_memory.md").read_text() == table(found)
    assert {field.name for field in fields(Peak)} == set(json.loads((RESULTS / "gpu_memory.json").read_text())[0])
