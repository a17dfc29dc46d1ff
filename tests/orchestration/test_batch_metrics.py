"""The metrics of a batch of groups."""

from vime.orchestration.batch_metrics import batch_metrics
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


def test_the_share_of_one_answer_is_taken_over_prompts():
    def answered(number: int, text: str, stop: StopReason = StopReason.ANSWERED) -> Rollout:
        return Rollout(rollout_id=number, group_index=0, stop_reason=stop, samples=[Sample(response="?"), Sample(response=text)])

    groups = [
        Group(prompt=PROMPT, rollouts=[answered(0, " yes"), answered(1, "yes\n")]),
        Group(prompt=PROMPT, rollouts=[answered(2, "no"), answered(3, "yes"), answered(4, "no", StopReason.SERVER_LOST)]),
    ]
    assert batch_metrics(groups, version=0)["rollout/same_answer_share"] == 0.75
    assert "rollout/same_answer_share" not in batch_metrics(groups[:1], version=0), "of one prompt it may well be the same"


def test_sessions_say_what_was_delivered_and_how_far_conversations_go_on():
    counts = {"tokens": 10, "delivered_tokens": 8, "prompt_tokens": 100, "encoded_tokens": 25, "calls": 6, "sequences": 2}
    counts |= {"fork_subagent": 1, "retries": 3}
    rollout = Rollout(rollout_id=0, group_index=0, reward=1.0, stop_reason=StopReason.ANSWERED, samples=[Sample()])
    rollout.counts = {f"session_{name}": number for name, number in counts.items()} | {"tool_calls": 2}
    metrics = batch_metrics([Group(prompt=PROMPT, rollouts=[rollout, rollout])], version=0)
    found = {name.removeprefix("session/"): value for name, value in metrics.items() if name.startswith("session/")}
    assert found == {
        **{"calls": 12.0, "retries": 6.0, "refused": 0.0, "malformed": 0.0, "fork_subagent": 2.0},
        **{"delivered_share": 0.8, "encoded_share": 0.25, "calls_per_sequence": 3.0},
    }
    assert [name for name in metrics if name.startswith("count/")] == ["count/tool_calls"]


def test_turns_are_what_the_model_wrote_and_sequences_what_is_trained():
    def sample(*mask: int) -> Sample:
        size = len(mask)
        numbers = {"rollout_log_probs": [0.0] * size, "weight_versions": [0] * size}
        return Sample(tokens=[1, *mask], response_length=size, loss_mask=list(mask), **numbers)

    samples = [[sample(1, 1, 0, 1)], [sample(0, 1), sample(1, 0, 1, 0, 1)]]
    rollouts = [
        Rollout(rollout_id=number, group_index=0, stop_reason=StopReason.ANSWERED, samples=found)
        for number, found in enumerate(samples)
    ]
    metrics = batch_metrics([Group(prompt=PROMPT, rollouts=rollouts)], version=0)
    assert metrics["rollout/turns_mean"] == 3.0 and metrics["rollout/sequences_mean"] == 1.5
