"""The page of whole steps on syncs that take long."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import bench_step
from step_ours import Step


def test_a_sync_that_takes_long_is_explained():
    def step(check: float) -> Step:
        parts = {"sync/export_seconds": 0.04, "sync/check_seconds": check, "sync/pause_seconds": 0.01}
        return Step(wall=2.0, cpu={}, metrics=parts | {"time/sync_share": 0.15})

    steps = [step(0.1), step(0.2)]
    assert bench_step.phase_seconds(steps, "sync") == 0.6
    note = bench_step.long_sync("35M, one step off", 0.15, steps, beside_generation=True)
    assert "take 15% of the steps" in note
    assert "Of 300 ms, writing takes 40, loading beside the old weights 150, the pause 10" in note
    assert "the wait for the probe 100" in note and "150 ms, it would be 8%" in note
