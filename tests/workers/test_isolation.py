"""A hook can cost only its own rollout, no matter what it does; every outcome is a stop reason."""

import asyncio
import math
import pickle
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from jinja2.exceptions import TemplateError, UndefinedError

from tests.sampled import sample_of
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.config import RolloutConfig, RunConfig
from vime.errors import BadRequestError, ConfigError, ContextFullError, Problem, SandboxError, ServerError
from vime.rollout import within
from vime.rollout.context import Context, Sampling
from vime.types import COLUMNS, COUNTS, Reward, Rollout, Sample, Status, StopReason, Turn
from vime.workers.isolation import Hooks, run_rollout

TURN = Turn(
    prompt_ids=[1, 2],
    output_ids=[3],
    logprobs=[-0.1],
    weight_versions=[0],
    finish_reason="stop",
    message={"role": "assistant", "content": "hi"},
)


async def answer(context, sample, sampling):
    return sample_of(sample, TURN)


async def one(context, samples):
    return 1.0


async def attempt(generate=answer, reward=one, **settings) -> Rollout:
    settings = {"generate_timeout_seconds": 0.2, "reward_timeout_seconds": 0.2, "max_retries": 1, **settings}
    trace = Trace()
    return await run_rollout(
        hooks=Hooks(generate=generate, reward=reward),
        config=RolloutConfig(**settings),
        make_context=lambda number: Context(config=RunConfig(), evaluation=False, session_id=str(number), trace=trace),
        template=Sample(prompt=[], group_index=2, rollout_id=7, session_id="s"),
        sampling=Sampling(temperature=1.0, top_p=1.0),
    )


def run(**arguments) -> Rollout:
    return asyncio.run(attempt(**arguments))


def test_a_good_rollout_carries_identity_reward_and_status():
    rollout = run()
    assert (rollout.stop_reason, rollout.reward, rollout.status) == (StopReason.ANSWERED, 1.0, Status.COMPLETED)
    assert (rollout.samples[0].rollout_id, rollout.samples[0].group_index, rollout.samples[0].reward) == (7, 2, 1.0)


def test_an_exception_in_generate_is_retried_and_then_counted():
    async def broken(context, sample, sampling):
        raise ValueError("no tool")

    rollout = run(generate=broken)
    assert (rollout.stop_reason, rollout.num_retries) == (StopReason.GENERATE_RAISED, 1)
    assert "no tool" in rollout.error


def test_a_second_attempt_can_succeed():
    async def flaky(context, sample, sampling):
        if context.session_id == "0":
            raise ServerError("gone")
        return sample_of(sample, TURN)

    rollout = run(generate=flaky)
    assert (rollout.stop_reason, rollout.num_retries) == (StopReason.ANSWERED, 1)


def test_what_a_failed_attempt_has_counted_is_not_counted_twice():
    async def flaky(context, sample, sampling):
        context.trace.count("tool_calls")
        if context.session_id == "0":
            raise ServerError("gone")
        return sample_of(sample, TURN)

    assert run(generate=flaky).counts == {"tool_calls": 1}


def test_a_lost_server_is_the_infrastructures_fault():
    async def lost(context, sample, sampling):
        raise ServerError("gone")

    rollout = run(generate=lost)
    assert rollout.stop_reason is StopReason.SERVER_LOST
    assert not rollout.counting.in_baseline


def test_an_agent_that_hangs_runs_into_its_time_limit_and_scores_nothing():
    async def hanging(context, sample, sampling):
        await asyncio.sleep(60)

    rollout = run(generate=hanging)
    assert (rollout.stop_reason, rollout.reward, rollout.counting.in_baseline) == (StopReason.TIME_LIMIT, 0.0, True)


def test_a_reward_that_raises_or_hangs_or_is_not_finite_is_called_again_then_the_rollout_leaves_the_baseline():
    calls: list[str] = []

    async def broken(context, samples):
        calls.append("broken")
        raise KeyError("x")

    async def hanging(context, samples):
        calls.append("hanging")
        await asyncio.sleep(60)

    async def infinite(context, samples):
        calls.append("infinite")
        return math.inf

    for reward, reason in [
        (broken, StopReason.REWARD_RAISED),
        (hanging, StopReason.REWARD_TIMEOUT),
        (infinite, StopReason.REWARD_RAISED),
    ]:
        rollout = run(reward=reward, max_reward_retries=2)
        assert (rollout.stop_reason, rollout.counting.in_baseline, rollout.num_retries) == (reason, False, 0)
        assert rollout.counts["reward_retries"] == 2
    assert calls == ["broken"] * 3 + ["hanging"] * 3 + ["infinite"] * 3


def test_a_reward_that_recovers_scores_the_same_samples():
    seen: list[int] = []

    async def flaky(context, samples):
        seen.append(id(samples[0]))
        if len(seen) == 1:
            raise ConnectionError("not yet")
        return 0.5

    rollout = run(reward=flaky)
    assert (rollout.stop_reason, rollout.reward, rollout.error) == (StopReason.ANSWERED, 0.5, "")
    assert seen[0] == seen[1] == id(rollout.samples[0])


def test_a_hook_cannot_end_the_worker_nor_outlive_its_time_nor_cancel_itself_away():
    async def leaving(context, sample, sampling):
        sys.exit(3)

    async def stubborn(context, sample, sampling):
        while not done.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)

    async def vanishing(context, sample, sampling):
        raise asyncio.CancelledError

    done, cancelled = asyncio.Event(), []
    assert "SystemExit" in run(generate=leaving).error
    assert run(generate=vanishing).stop_reason is StopReason.GENERATE_RAISED
    within.CANCEL_GRACE_SECONDS, grace = 0.1, within.CANCEL_GRACE_SECONDS
    try:
        loop = asyncio.new_event_loop()
        rollout = loop.run_until_complete(attempt(generate=stubborn))
        assert (rollout.stop_reason, cancelled) == (StopReason.TIME_LIMIT, [True])
        done.set()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
    finally:
        within.CANCEL_GRACE_SECONDS = grace


def test_a_crashed_sandbox_is_the_infrastructures_fault():
    async def crashed(context, sample, sampling):
        raise SandboxError("gone")

    rollout = run(generate=crashed)
    assert (rollout.stop_reason, rollout.num_retries) == (StopReason.SANDBOX_CRASHED, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss_mask": []}, "loss_mask has 0 entries"),
        ({"rollout_log_probs": [math.nan]}, "logprob nan"),
        ({"tokens": [3]}, "prompt is empty"),
        ({"weight_versions": [1, 2]}, "weight_versions has 2"),
        ({"stop_reason": "done"}, "'done' is not a valid StopReason; there are answered, "),
    ],
)
def test_a_malformed_sample_is_an_error_that_names_the_rollout(change: dict, words: str):
    async def malformed(context, sample, sampling):
        result = sample_of(sample, TURN)
        for name, value in change.items():
            setattr(result, name, value)
        return result

    rollout = run(generate=malformed)
    assert rollout.stop_reason is StopReason.GENERATE_RAISED
    assert "rollout 7" in rollout.error and words in rollout.error


@pytest.mark.parametrize(
    "reward",
    [
        Reward(score=None),  # pyright: ignore[reportArgumentType]
        Reward(score=1.0, metrics={"strict": None}),  # pyright: ignore[reportArgumentType]
        Reward(score=1.0, metrics={"strict": math.nan}),
    ],
)
def test_a_reward_that_holds_no_numbers_costs_its_rollout(reward: Reward):
    async def verdict(context, samples):
        return reward

    assert run(reward=verdict).stop_reason is StopReason.REWARD_RAISED


def test_numbers_of_a_reward_become_plain_floats():
    async def arrays(context, samples):
        return Reward(score=np.float32(0.5), metrics={"strict": np.float32(1)})  # pyright: ignore[reportArgumentType]

    rollout = run(reward=arrays)
    assert [type(value) for value in (rollout.reward, rollout.metrics["strict"])] == [float, float]


def test_every_stop_reason_says_what_it_counts_for():
    assert set(COUNTS) == set(StopReason)
    for counting in COUNTS.values():
        assert counting.trained <= counting.in_baseline
        assert not (counting.retried and counting.in_baseline)


def test_an_accepted_sample_has_columns_that_a_hook_reads_like_lists():
    seen, more = [], [9]

    async def reward(context, samples):
        (sample,) = samples
        seen.append((sample.tokens + more, more + sample.loss_mask, sample.tokens[-1:] == [3], sum(sample.loss_mask)))
        sample.loss_mask = [0]
        return 1.0

    (sample,) = run(reward=reward).samples
    assert seen == [([1, 2, 3, 9], [9, 1], True, 1)]
    assert (sample.tokens, sample.weight_versions) == ([1, 2, 3], [0])
    assert {np.asarray(getattr(sample, name)).dtype.name for name in COLUMNS} >= {"int32", "float32"}
    assert sample.num_trained_tokens == 0, "a list that a hook put there counts"
    assert sum(np.asarray(getattr(sample, name)).itemsize for name in COLUMNS if name != "loss_mask") == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": [2]}, "loss_mask is 2 at response token 0, not 0 or 1"),
        ({"loss_mask": [0.5]}, "loss_mask: 0.5 at 0 is no integer"),
        ({"tokens": [1, 2, 2**31]}, "tokens: 2147483648 at 2 is no integer"),
        ({"tokens": [1, 2, "x"]}, "tokens: values of type"),
        ({"rollout_log_probs": [None]}, "logprob nan at trainable response token 0"),
    ],
)
def test_numbers_that_would_change_in_a_column_are_refused(change, message):
    async def generate(context, sample, sampling):
        sample = sample_of(sample, TURN)
        for name, value in change.items():
            setattr(sample, name, value)
        return sample

    rollout = run(generate=generate)
    assert rollout.stop_reason is StopReason.GENERATE_RAISED and message in rollout.error


def test_what_the_user_has_to_fix_ends_the_run_and_is_not_tried_again():
    calls: list[str] = []

    async def misconfigured(context, sample, sampling):
        calls.append(context.session_id)
        raise ConfigError([Problem(key="model.tool_parser", value=None, remedy="is missing")])

    with pytest.raises(ConfigError, match="is missing"):
        run(generate=misconfigured)
    assert calls == ["0"]


def test_an_error_of_a_hook_names_its_line_and_keeps_its_traceback():
    async def broken(context, sample, sampling):
        raise ValueError("no tool")

    async def unjust(context, samples):
        raise KeyError("label")

    failed, unscored = run(generate=broken), run(reward=unjust)
    assert re.search(r"ValueError: no tool \(.*test_isolation\.py:\d+\)$", failed.error)
    assert failed.traceback.splitlines()[-1] == "ValueError: no tool" and "in broken" in failed.traceback
    assert "in unjust" in unscored.traceback and "within.py" not in unscored.traceback.splitlines()[1]
    assert Rollout.from_dict(failed.to_dict()) == failed


def test_a_reward_that_succeeds_at_last_leaves_no_error():
    calls = []

    async def flaky(context, samples):
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("label")
        return 1.0

    rollout = run(reward=flaky, max_reward_retries=1)
    assert (rollout.reward, rollout.error, rollout.traceback) == (1.0, "", "")


FULL = ContextFullError("100 prompt tokens and max_tokens=0 are 101, more than max_model_len=100 of actor")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, StopReason.TOKEN_LIMIT),
        (BadRequestError("the prompt is empty"), StopReason.REQUEST_REFUSED),
        (BadRequestError("actor refuses s-0: unknown parameter"), StopReason.REQUEST_REFUSED),
        (TemplateError("roles must alternate"), StopReason.REQUEST_REFUSED),
        (UndefinedError("'str object' has no attribute 'name'"), StopReason.REQUEST_REFUSED),
    ],
)
def test_a_request_that_no_attempt_can_make_is_made_once(error: Exception, reason: StopReason):
    num_attempts = 0

    async def generate(context, sample, sampling):
        nonlocal num_attempts
        num_attempts += 1
        raise error

    rollout = run(generate=generate, max_retries=3)
    assert (rollout.stop_reason, rollout.num_retries, num_attempts) == (reason, 0, 1)
    assert rollout.could_not_begin and str(error) in rollout.error
    assert not COUNTS[reason].retried and rollout.reward == 0


@pytest.mark.parametrize(("model", "reason"), [("actor", StopReason.TOKEN_LIMIT), ("judge", StopReason.REQUEST_REFUSED)])
def test_the_context_of_another_model_is_not_the_agents_limit(model: str, reason: StopReason):
    async def generate(context, sample, sampling):
        context.models["actor"] = SimpleNamespace(name="actor")
        raise pickle.loads(pickle.dumps(ContextFullError("no room", model)))

    rollout = run(generate=generate)
    assert (rollout.stop_reason, rollout.num_retries) == (reason, 0) and "no room" in rollout.error


def test_a_context_that_fills_later_ends_the_rollout_with_what_was_sampled():
    async def generate(context, sample, sampling):
        prompt = context.trajectory.continued(TURN.prompt_ids, model="actor")
        context.trajectory.begin(prompt, model="actor", tokenizer=Letters()).finish(TURN)
        raise FULL

    rollout = run(generate=generate)
    assert (rollout.stop_reason, rollout.status, rollout.num_retries) == (StopReason.TOKEN_LIMIT, Status.TRUNCATED, 0)
    assert [list(sample.tokens) for sample in rollout.samples] == [[1, 2, 3]]
    assert not rollout.could_not_begin and rollout.counting.in_baseline and rollout.counts["context_full"] == 1


class Letters:
    def decode(self, ids, **_):
        return "x" * len(ids)


@pytest.mark.parametrize("num_tokens", [99, 100, 101, 250])
@pytest.mark.parametrize("num_attempts", [1, 3])
def test_the_model_asked_once_never_asks_for_less_than_a_token(num_tokens: int, num_attempts: int):
    asked = []

    class Client:
        async def generate(self, token_ids, *, sampling, **_):
            asked.append(sampling["max_tokens"])
            return replace(TURN, prompt_ids=[], message={})

    class Tokenizer(Letters):
        def __init__(self):
            self.all_special_tokens, self.added_tokens_decoder = [], {}

    model = ServedModel(client=Client(), tokenizer=Tokenizer(), max_model_len=100, temperature=1.0, top_p=1.0, session="s")

    async def generate(context, sample, sampling):
        return sample_of(sample, await model.complete([1] * num_tokens, max_tokens=100 - num_tokens))

    rollout = run(generate=generate, max_retries=num_attempts - 1)
    assert asked == ([1] if num_tokens < 100 else [])
    assert rollout.stop_reason is (StopReason.ANSWERED if num_tokens < 100 else StopReason.TOKEN_LIMIT)
    assert rollout.num_retries == 0
