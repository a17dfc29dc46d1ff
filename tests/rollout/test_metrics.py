"""What a batch of groups says about itself."""

from vime.rollout.metrics import batch_metrics
from vime.types import Group, Prompt, Rollout, Sample, StopReason

PROMPT = Prompt(index=0, row=0, messages=[], ground_truth=[])


def test_a_rollout_that_ran_out_of_time_counts_as_unsolved():
    solved = Rollout(rollout_id=0, group_index=0, reward=1.0, stop_reason=StopReason.ANSWERED, samples=[Sample()])
    solved.metrics = {"strict": 1.0, "f1": 0.5}
    other = Rollout(rollout_id=1, group_index=0, reward=1.0, stop_reason=StopReason.ANSWERED, samples=[Sample()])
    other.metrics = {"strict": 1.0}
    late = Rollout(rollout_id=2, group_index=0, stop_reason=StopReason.TIME_LIMIT)
    lost = Rollout(rollout_id=3, group_index=0, stop_reason=StopReason.SERVER_LOST)
    metrics = batch_metrics([Group(prompt=PROMPT, rollouts=[solved, other, late, lost])], version=0)
    assert metrics["reward/mean"] == metrics["reward/strict"] == 2 / 3
    assert metrics["reward/f1"] == 0.25, "over those that have it, and those that were never scored"
