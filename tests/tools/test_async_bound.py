"""The ideal machine of `tools/bench_async.py`: what it takes, checked by hand, and that no token in it is too old."""

import random
from dataclasses import replace
from statistics import fmean

import pytest

from tools.async_bound import Run, Simulation

QUICK = Run(
    num_steps=40,
    num_prompts=8,
    num_samples=4,
    max_staleness=8,
    num_cores=2,
    training_seconds=0.5,
    rollout_seconds=0.0625,
    tool_seconds=lambda slot, member, attempt: 0.0,
)


def one_long_call(slot: int, member: int, attempt: int) -> float:
    """25 s once, and none elsewhere."""
    return 25.0 if (slot, member) == (20, 1) else 0.0


def test_a_synchronous_step_generates_on_all_cores_and_then_trains():
    ended = Simulation(replace(QUICK, max_staleness=0)).end()
    assert ended.step_seconds == pytest.approx([1.5] * 40)
    assert ended.ages == [0] * 40 and ended.num_resampled == 0


def test_a_synchronous_step_waits_for_its_longest_tool():
    ended = Simulation(replace(QUICK, max_staleness=0, tool_seconds=one_long_call)).end()
    assert ended.step_seconds[2] == pytest.approx(25.0 + 0.0625 + 0.5)


def test_asynchronous_training_without_tools_takes_what_the_cores_need():
    ended = Simulation(QUICK).end()
    work = 40 * (32 * 0.0625 + 2 * 0.5)
    assert sum(ended.step_seconds) == pytest.approx(work / 2)


def test_one_call_of_25_s_stalls_8_steps_of_1_and_a_half_unless_the_rest_of_its_group_is_sampled_again():
    run = replace(QUICK, tool_seconds=one_long_call)
    waited, resampled = Simulation(replace(run, resamples=False)).end(), Simulation(run).end()
    assert sum(waited.step_seconds[:9]) == pytest.approx(25.0 + 0.0625 + 0.5), "its group is in the last batch that may have it"
    assert waited.num_resampled == 0 and 3 <= resampled.num_resampled <= 9
    assert sum(resampled.step_seconds[:9]) < 18.0, "it waits until half of all groups have finished, which is no idle time"
    work = 40 * 3.0 + resampled.num_resampled * 0.0625
    assert sum(resampled.step_seconds) == pytest.approx(work / 2, rel=0.02), "no core is ever idle for long"


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 8])
@pytest.mark.parametrize(("resamples", "oldest_first"), [(True, True), (True, False), (False, True)])
def test_no_token_is_trained_too_old_and_every_step_is_made(max_staleness: int, resamples: bool, oldest_first: bool):
    def tool(slot: int, member: int, attempt: int) -> float:
        return random.Random(slot * 10 + member).lognormvariate(0.0, 1.5)

    run = replace(QUICK, max_staleness=max_staleness, resamples=resamples, oldest_first=oldest_first, tool_seconds=tool)
    ended = Simulation(run).end()
    assert len(ended.step_seconds) == len(ended.ages) == 40
    assert all(0 <= age <= max_staleness for age in ended.ages)


@pytest.mark.parametrize("max_staleness", [1, 8])
def test_resampling_does_not_favour_short_rollouts(max_staleness: int):
    def tool(slot: int, member: int, attempt: int) -> float:
        return random.Random(f"{slot} {member} {attempt}").lognormvariate(0.0, 1.0)

    run = replace(QUICK, num_steps=200, max_staleness=max_staleness, tool_seconds=tool)
    resampled, waited = Simulation(run).end(), Simulation(replace(run, resamples=False)).end()
    assert len(resampled.tool_seconds) == len(waited.tool_seconds) == 200 * 32 and resampled.num_resampled > 0
    assert fmean(waited.tool_seconds) <= fmean(resampled.tool_seconds) <= 1.03 * fmean(waited.tool_seconds)
