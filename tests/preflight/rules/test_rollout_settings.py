"""Settings of generation that cannot work together."""

from pathlib import Path
from typing import Any

import pytest

from vime.config import RolloutConfig, RunConfig
from vime.preflight.rules.rollout_settings import own_producer

PLAIN = "class Mine:\n    def __init__(self, config, source, runner): ...\n    async def batch(self, version): ...\n"
RESUMABLE = f"{PLAIN}    def state(self): ...\n    def load(self, state): ...\n"


def keys(folder: Path, source: str, *, resume: bool = False, **rollout: Any) -> list[str]:
    """Keys that are refused beside a producer of this source."""
    file = folder / f"mine_{len(source)}.py"  # a file is read once
    file.write_text(source)
    settings = RolloutConfig(producer=f"{file}:Mine", **rollout)
    return [problem.key for problem in own_producer(RunConfig(rollout=settings, resume=resume))]


@pytest.mark.parametrize(
    "mode",
    [
        {"filter": "mine.keep"},
        {"partial_rollouts": True},
        {"num_oversampled_prompts": 1},
        {"num_oversampled_samples_per_prompt": 1},
    ],
)
def test_modes_of_the_built_in_producer_are_refused_beside_another(mode: dict[str, Any], tmp_path: Path):
    assert keys(tmp_path, PLAIN, **mode) == [f"rollout.{name}" for name in mode]
    assert keys(tmp_path, PLAIN) == []


def test_a_producer_that_draws_ahead_is_resumed_only_if_it_can_be(tmp_path: Path):
    assert keys(tmp_path, PLAIN, resume=True, max_staleness=1) == ["rollout.producer"]
    assert keys(tmp_path, RESUMABLE, resume=True, max_staleness=1) == []
    assert keys(tmp_path, PLAIN, resume=True, max_staleness=0) == []
