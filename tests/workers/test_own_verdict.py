"""A status and a reward that `generate` sets on its samples are honoured, as slime's users know it."""

import asyncio
from typing import Any

import pytest

from tests.sampled import sample_of
from vime.config import RolloutConfig, RunConfig
from vime.rollout.context import Context, Sampling
from vime.types import Group, Prompt, Reward, Rollout, Sample, Status, StopReason, Turn
from vime.workers.group_hooks import run_group_function, score_group
from vime.workers.isolation import Hooks, run_rollout

TURN = Turn(
    prompt_ids=[1, 2],
    output_ids=[3],
    logprobs=[-0.1],
    weight_versions=[0],
    finish_reason="stop",
    message={"role": "assistant", "content": "hi"},
)
PROMPT = Prompt(index=0, row=0, messages=[], ground_truth=["x"])
CONTEXT = Context(config=RunConfig(), evaluation=False, session_id="s")
CONFIG = RolloutConfig(max_retries=1, max_reward_retries=0)
SAMPLING = Sampling(temperature=1.0, top_p=1.0)


async def hook(context: Context, samples: list[Sample]) -> float:
    return 0.25


def run(*said: dict[str, Any], reward: Any = hook, attempts: list[Sample] | None = None) -> Rollout:
    """A rollout whose `generate` returns one sample for each of these, with what they say set on it."""

    async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
        if attempts is not None:
            attempts.append(sample)
        samples = [sample_of(sample, TURN) for _ in said]
        for made, values in zip(samples, said):
            for name, value in values.items():
                setattr(made, name, value)
        sample.reward, sample.status = 9.0, Status.TRUNCATED  # on the template, which is not returned
        sample.tokens += [1]
        return samples

    return asyncio.run(
        run_rollout(
            hooks=Hooks(generate=generate, reward=reward),
            config=CONFIG,
            make_context=lambda _: CONTEXT,
            template=Sample(prompt=[], group_index=0, rollout_id=7),
            sampling=SAMPLING,
        )
    )


@pytest.mark.parametrize(
    ("status", "stop_reason"),
    [
        ("pending", StopReason.ANSWERED),
        (Status.COMPLETED, StopReason.ANSWERED),
        ("truncated", StopReason.TOKEN_LIMIT),
        (Status.ABORTED, StopReason.ABORTED),
        (Status.FAILED, StopReason.GENERATE_RAISED),
    ],
)
def test_a_status_says_how_the_rollout_ended(status: Any, stop_reason: StopReason) -> None:
    rollout = run({"status": status})
    assert rollout.stop_reason is stop_reason
    assert (rollout.num_retries, len(rollout.samples)) == ((0, 1) if rollout.counting.trained else (1, 0))
    assert rollout.counting.trained or "status=" in rollout.error


def test_a_rollout_that_failed_needs_no_valid_samples_and_the_next_attempt_finds_nothing_of_it() -> None:
    attempts: list[Sample] = []
    assert run({"status": "failed", "tokens": []}, attempts=attempts).stop_reason is StopReason.GENERATE_RAISED
    first, second = attempts
    assert first is not second and first.tokens is not second.tokens and second.metadata is not first.metadata


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([{"status": "truncated", "stop_reason": "answered"}], ["status=truncated", "stop_reason=answered"]),
        ([{"status": "done"}], ["'done'", "completed"]),
        ([{"status": "failed"}, {"status": "completed"}], ["sample 0", "generate_raised", "answered"]),
    ],
)
def test_contradictions_are_errors_that_name_both_sides(said: list[dict[str, Any]], words: list[str]) -> None:
    rollout = run(*said)
    assert rollout.stop_reason is StopReason.GENERATE_RAISED
    assert all(word in rollout.error for word in ["rollout 7", *words]), rollout.error


@pytest.mark.parametrize("reward", [hook, None])
def test_rewards_that_generate_has_set_count_and_the_hook_is_not_asked(reward: Any) -> None:
    rollout = run({"reward": 1}, {"reward": 0.0}, reward=reward)
    assert (rollout.stop_reason, rollout.reward) == (StopReason.ANSWERED, 0.5)
    assert [sample.reward for sample in rollout.samples] == [1.0, 0.0]


def test_a_hook_scores_the_samples_that_have_no_reward_yet() -> None:
    rollout = run({"reward": 1.0}, {})
    assert rollout.reward == 0.25 and [sample.reward for sample in rollout.samples] == [1.0, 0.25]


@pytest.mark.parametrize("bad", [{}, {"reward": float("nan")}, {"reward": {"score": 1.0}}])
def test_without_a_hook_a_reward_that_is_missing_or_no_number_is_a_clear_failure(bad: dict[str, Any]) -> None:
    rollout = run({"reward": 1.0}, bad, reward=None)
    assert (rollout.stop_reason, rollout.counting.in_baseline) == (StopReason.REWARD_RAISED, False)
    assert "reward" in rollout.error and [sample.reward for sample in rollout.samples] == [0.0, 0.0]


def test_a_reward_hook_may_score_each_sample_and_must_then_score_all() -> None:
    async def each(context: Context, samples: list[Sample]) -> Reward:
        return Reward(score=0.5, samples=[0.0, 1.0])

    rollout = run({}, {}, reward=each)
    assert rollout.reward == 0.5 and [sample.reward for sample in rollout.samples] == [0.0, 1.0]
    rollout = run({}, {}, {}, reward=each)
    assert rollout.stop_reason is StopReason.REWARD_RAISED and "2 samples, and the rollout has 3" in rollout.error


def test_a_group_reward_has_the_last_word() -> None:
    async def group_reward(context: Context, group: Group) -> list[Reward]:
        return [Reward(score=2.0) for _ in group.rollouts]

    group = Group(prompt=PROMPT, rollouts=[run({"reward": 1.0}, {"reward": 0.0})])
    asyncio.run(score_group(group_reward, group, context=CONTEXT, config=CONFIG))
    assert [sample.reward for sample in group.rollouts[0].samples] == [2.0, 2.0]


def test_rollouts_that_a_function_has_made_end_and_earn_as_their_samples_say() -> None:
    async def function(context: Context, prompt: Prompt, num_rollouts: int) -> Group:
        samples = [sample_of(Sample(reward=float(member), status=Status.TRUNCATED), TURN) for member in range(num_rollouts)]
        return Group(prompt=prompt, rollouts=[Rollout(rollout_id=0, group_index=0, samples=[sample]) for sample in samples])

    group = asyncio.run(
        run_group_function(function, PROMPT, slot=3, num_rollouts=2, context=CONTEXT, config=CONFIG, sampling=SAMPLING)
    )
    assert [rollout.reward for rollout in group.rollouts] == [0.0, 1.0]
    assert {(rollout.stop_reason, rollout.status) for rollout in group.rollouts} == {(StopReason.TOKEN_LIMIT, Status.TRUNCATED)}
