"""A worker with a simulated server: first n of m, kept progress, the gate of a sync, spans, and functions that fail."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sampled import sample_of
from vime.config import LoggerConfig, MethodConfig, RolloutConfig, RunConfig, ServingConfig
from vime.errors import ServerError
from vime.files.serialization import from_json, to_json
from vime.orchestration.batch_metrics import batch_metrics
from vime.serving.topology import Endpoint
from vime.types import Group, Prompt, Reward, Rollout, Sample, StopReason, Turn
from vime.workers.group_run import GroupProgress, Resampled
from vime.workers.worker import RolloutWorker

PROMPT = Prompt(index=3, row=3, messages=[{"role": "user", "content": "go"}], ground_truth=["x"])
NUM_TURNS = 3
LOST_SECONDS = 0.5


class SimulatedServer:
    """Answers each prompt with its own length, so that a turn tells which prompt it belongs to; versions can change meanwhile."""

    def __init__(self) -> None:
        self.version = 5
        self.prompts: list[list[int]] = []
        self.hold: set[str] = set()
        self.fail_after: int | None = None
        self.hang_after: int | None = None
        self.lose_before = False
        self.tool = asyncio.Event()
        """Ends the tool of `after_a_tool`."""
        self.sessions, self.finished = set[str](), set[str]()

    def finish(self, session_id: str) -> None:
        self.finished.add(session_id)

    async def generate(
        self, token_ids: Any, *, sampling: Any, session_id: str, request_id: str, minimum_version: int, listener: Any
    ) -> Any:
        if self.fail_after is not None and len(self.prompts) >= self.fail_after:
            self.fail_after = None
            raise ServerError("gone")
        self.prompts.append(token_ids)
        self.sessions.add(session_id)
        if self.hang_after is not None and len(self.prompts) > self.hang_after:
            listener.received(Turn(output_ids=[4], logprobs=[-0.125], weight_versions=[self.version]))
            listener.received(Turn(output_ids=[5], logprobs=[-0.25], weight_versions=[self.version + 1]))
            await asyncio.sleep(3600)
        if self.lose_before:
            listener.lost()
            await asyncio.sleep(LOST_SECONDS)
        first = self.version
        await asyncio.sleep(0.001)
        while any(f"-{member}-" in session_id for member in self.hold):
            await asyncio.sleep(0.001)
        output = [len(token_ids), 7]
        versions = [first, self.version]
        logprobs = [-0.5, -0.25]
        return Turn(output_ids=output, logprobs=logprobs, weight_versions=versions, finish_reason="stop", seconds=0.5)


async def generate(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    """Fan-out: every turn is a sample of its own, and each prompt is the whole conversation before it."""
    model, ids, samples = context.models["actor"], [1, 2], []
    for _ in range(NUM_TURNS):
        turn = await model.complete(ids, max_tokens=4)
        ids = [*turn.prompt_ids, *turn.output_ids, 9]
        samples.append(sample_of(sample, turn))
    return samples


async def reward(context: Any, samples: list[Sample]) -> float:
    return float(len(samples))


async def broken_function(context: Any, prompt: Prompt, num_rollouts: int) -> Group:
    raise KeyError("mine")


async def bad_function(context: Any, prompt: Prompt, num_rollouts: int) -> Group:
    broken = Sample(tokens=[1, 2], response_length=1)
    return Group(prompt=prompt, rollouts=[Rollout(rollout_id=0, group_index=0, samples=[broken])] * num_rollouts)


async def one_reward_too_few(context: Any, group: Group) -> list[Reward]:
    return [Reward(score=1.0)] * (len(group.rollouts) - 1)


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer()


@pytest.fixture
def make_worker(server: SimulatedServer, checkpoints: dict[str, Path]) -> Any:
    def make(*, group_reward: str | None = None, generate: str = "generate", **rollout: Any) -> RolloutWorker:
        here = f"{__file__}:"
        method = MethodConfig(name="m", generate=f"{here}{generate}", reward=f"{here}reward", group_reward=group_reward)
        config = RunConfig(
            method=method, rollout=RolloutConfig(**rollout), logger=LoggerConfig(trace_share=1.0), serving=ServingConfig()
        )
        endpoint = Endpoint(
            name="actor",
            url="http://nowhere",
            worker_urls=(),
            model="actor",
            tokenizer=str(checkpoints["untied"]),
            max_model_len=64,
            trained=True,
        )
        return RolloutWorker(config, {"actor": endpoint}, make_client=lambda endpoint, serving: server)

    return make


async def until(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


async def searching(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    """Two calls side by side from one prompt, then one that goes on from the first, and one to a frozen model."""
    model = context.models["actor"]
    await asyncio.gather(model.complete([1, 2], max_tokens=4), model.complete([1, 2], max_tokens=5))
    await model.complete([1, 2, 2, 7, 9], max_tokens=4)
    raise AssertionError("the last call has no end")


async def test_what_was_sampled_before_the_time_limit_is_kept_and_its_reward_is_zero(make_worker: Any, server: SimulatedServer):
    server.hang_after = 2
    worker = make_worker(generate="searching", generate_timeout_seconds=2.0)
    group = await worker.run_group(prompt=PROMPT, slot=1, num_rollouts=1, version=5)
    (rollout,) = group.rollouts
    assert (rollout.stop_reason, rollout.reward, rollout.counting.in_baseline) == (StopReason.TIME_LIMIT, 0.0, True)
    assert rollout.reward_seconds == 0.0, "half a result is not judged"
    assert [sample.tokens for sample in rollout.samples] == [[1, 2, 2, 7], [1, 2, 2, 7, 9, 4, 5]]
    assert [sample.loss_mask for sample in rollout.samples] == [[1, 1], [1, 1, 0, 1, 1]]
    assert rollout.samples[1].rollout_log_probs == [-0.5, -0.25, 0.0, -0.125, -0.25]
    assert rollout.samples[1].weight_versions == [5, 5, 5, 5, 6]
    assert {(sample.reward, sample.rollout_id, sample.stop_reason) for sample in rollout.samples} == {
        (0.0, rollout.rollout_id, StopReason.TIME_LIMIT)
    }
    assert [sample.index for sample in rollout.samples] == [0, 1] and group.oldest_version == 5
    assert batch_metrics([group], version=6)["rollout/response_tokens_mean"] == 6


async def test_an_evaluation_shows_half_a_result_to_readers_only(make_worker: Any, server: SimulatedServer):
    server.hang_after = 1
    worker = make_worker(generate_timeout_seconds=0.5)
    rollout = await worker.run_item(prompt=PROMPT, row="scaffold", temperature=1.0, version=5)
    assert (rollout.stop_reason, rollout.samples, rollout.reward) == (StopReason.TIME_LIMIT, [], 0.0)
    assert [sample.tokens for sample in rollout.unfinished] == [[1, 2, 2, 7, 9, 4, 5]]
    assert [sample.loss_mask for sample in rollout.unfinished] == [[1, 1, 0, 1, 1]]
    assert Rollout.from_dict(from_json(to_json(rollout.to_dict()))) == rollout


async def raising(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    await context.models["actor"].complete([1, 2], max_tokens=4)
    raise KeyError("mine")


async def test_what_the_model_had_said_when_a_hook_raised_is_kept_but_not_trained(make_worker: Any):
    worker = make_worker(generate="raising", max_retries=0)
    (rollout,) = (await worker.run_group(prompt=PROMPT, slot=1, num_rollouts=1, version=5)).rollouts
    assert (rollout.stop_reason, rollout.samples) == (StopReason.GENERATE_RAISED, [])
    assert [sample.tokens for sample in rollout.unfinished] == [[1, 2, 2, 7]]


async def showing_its_row(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    await context.models["actor"].complete([1, 2], max_tokens=4)
    return context.samples(sample, row=dict(context.row))


async def score_of_its_row(context: Any, group: Group) -> list[Reward]:
    return [Reward(score=context.row["weight"]) for _ in group.rollouts]


async def test_every_hook_has_the_row(make_worker: Any):
    worker = make_worker(generate="showing_its_row", group_reward=f"{__file__}:score_of_its_row")
    group = await worker.run_group(prompt=replace(PROMPT, metadata={"weight": 0.25}), slot=1, num_rollouts=1, version=5)
    assert group.rollouts[0].samples[0].metadata["row"] == {
        "weight": 0.25,
        "question": "go",
        "prompt": [{"role": "user", "content": "go"}],
    }
    assert group.rollouts[0].reward == 0.25


async def asking_function(context: Any, prompt: Prompt, num_rollouts: int) -> Group:
    turns = [await context.models["actor"].complete([1, 2], max_tokens=4) for _ in range(num_rollouts)]
    samples = [sample_of(Sample(), turn) for turn in turns]
    return Group(prompt=prompt, rollouts=[Rollout(rollout_id=0, group_index=0, samples=[each]) for each in samples])


async def asking_reward(context: Any, group: Group) -> list[Reward]:
    await context.models["actor"].complete([1, 2], max_tokens=4)
    return [Reward(score=1.0) for _ in group.rollouts]


async def test_a_router_is_told_of_the_end_of_every_session(make_worker: Any, server: SimulatedServer):
    here = f"{__file__}:"
    for worker in (make_worker(group_reward=f"{here}asking_reward"), make_worker(group_function=f"{here}asking_function")):
        await worker.run_group(prompt=PROMPT, slot=1, num_rollouts=2, version=5)
    assert len(server.sessions) == 4 and server.sessions <= server.finished


async def test_an_outage_is_not_the_agents_time_nor_that_of_a_worker_that_may_be_stuck(make_worker: Any, server: SimulatedServer):
    server.lose_before = True
    worker = make_worker(generate_timeout_seconds=1.0)
    before, started = (await worker.ready()).active_seconds, time.monotonic()
    group = await worker.run_group(prompt=PROMPT, slot=1, num_rollouts=2, version=5)
    assert [rollout.stop_reason for rollout in group.rollouts] == [StopReason.ANSWERED] * 2
    active = (await worker.ready()).active_seconds - before
    assert time.monotonic() - started - active > 0.99 * NUM_TURNS * LOST_SECONDS


async def test_the_first_n_of_m_make_the_group_and_the_rest_is_aborted_and_counted(make_worker: Any, server: SimulatedServer):
    server.hold = {"1", "3"}
    group = await make_worker().run_group(prompt=PROMPT, slot=2, num_rollouts=5, version=5, num_wanted=3)
    reasons = [rollout.stop_reason for rollout in group.rollouts]
    answered, aborted = StopReason.ANSWERED, StopReason.ABORTED
    assert reasons == [answered, aborted, answered, aborted, answered]
    assert [rollout.counting.in_baseline for rollout in group.rollouts] == [True, False, True, False, True]


async def until_finished(worker: RolloutWorker, *, slot: int, number: int) -> None:
    """Waits until `number` rollouts of an unfinished group have finished."""
    for _ in range(10_000):
        found = (await worker.progress()).get(slot)
        if found is not None and len(found.finished) == number:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


async def after_a_tool(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    """Member 1 calls a tool before the model, and member 3 after it."""
    tool = context.models["actor"].client.tool
    if sample.member == 1:
        await tool.wait()
    samples = await generate(context, sample, sampling)
    if sample.member == 3:
        await tool.wait()
    return samples


async def test_stale_rollouts_are_sampled_again_and_a_slow_one_without_tokens_goes_on(make_worker: Any, server: SimulatedServer):
    worker = make_worker(generate="after_a_tool")
    running = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=2, num_rollouts=3, version=5))
    await until_finished(worker, slot=2, number=2)
    server.version = 6
    assert await worker.resample(slot=9, oldest=6, version=6) is None, "no such group"
    assert await worker.resample(slot=2, oldest=5, version=6) == Resampled(version=5, members=()), "nothing is stale"
    assert await worker.resample(slot=2, oldest=6, version=6) == Resampled(version=6, members=(0, 2))
    progress = (await worker.progress())[2]
    assert progress.version == 6 and not progress.finished
    await until_finished(worker, slot=2, number=2)
    assert len((await worker.progress())[2].finished) == 2, "they are known while the slow one is still at its tool"
    server.tool.set()
    group = await running
    assert [rollout.member for rollout in group.rollouts] == [0, 1, 2] and len(server.prompts) == 5 * NUM_TURNS
    assert group.oldest_version == group.weight_version == 6
    assert [rollout.stop_reason for rollout in group.rollouts] == [StopReason.ANSWERED] * 3
    assert await worker.resample(slot=2, oldest=7, version=7) is None, "it has ended"


@pytest.mark.parametrize("reason", ["a call in flight", "a turn"])
async def test_a_slow_rollout_with_old_tokens_of_its_own_is_waited_for(make_worker: Any, server: SimulatedServer, reason: str):
    server.hold = {"0"} if reason == "a call in flight" else set()
    worker = make_worker(generate="after_a_tool")
    running = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=2, num_rollouts=4, version=5))
    num_ended = 1 if server.hold else 2
    await until_finished(worker, slot=2, number=num_ended)
    await asyncio.sleep(0.05)
    server.version = 6
    assert await worker.resample(slot=2, oldest=6, version=6) is None
    assert len((await worker.progress())[2].finished) == num_ended, "nothing has changed"
    server.hold = set()
    server.tool.set()
    assert (await running).oldest_version == 5


async def test_a_cancelled_group_leaves_its_slot_to_the_one_that_came_after(make_worker: Any, server: SimulatedServer):
    worker = make_worker()
    server.hold = {"0"}
    first = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=5, num_rollouts=1, version=5))
    await until(lambda: server.prompts)
    first.cancel()
    second = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=5, num_rollouts=1, version=5))
    await until(first.done)
    assert list(await worker.progress()) == [5]
    server.hold = set()
    assert len((await second).rollouts) == 1


async def test_a_rollout_that_is_interrupted_goes_on_with_its_finished_turns_mask_and_logprobs(
    make_worker: Any, server: SimulatedServer
):
    worker = make_worker()
    running = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=2, num_rollouts=2, version=5))
    await until(lambda: len(server.prompts) >= 4)
    server.hold = {"0", "1"}
    progress = GroupProgress.from_dict(from_json(to_json((await worker.progress())[2].to_dict(), compact=True)))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0.01)
    saved = {member: list(turns) for member, turns in progress.turns.items()}
    assert set(saved) == {0, 1} and (progress.prompt_index, progress.version) == (3, 5)

    server.hold, server.version, server.prompts = set(), 6, []
    group = await make_worker().run_group(prompt=PROMPT, slot=2, num_rollouts=2, version=5, progress=progress)
    assert len(server.prompts) == 2 * NUM_TURNS - sum(map(len, saved.values())), "finished turns are not sampled again"
    for member, rollout in enumerate(group.rollouts):
        assert len(rollout.samples) == NUM_TURNS and rollout.reward == NUM_TURNS
        for sample, turn in zip(rollout.samples, saved[member]):
            assert sample.tokens[-2:] == turn.output_ids and sample.weight_versions == turn.weight_versions
            assert sample.rollout_log_probs == turn.logprobs and sample.loss_mask == [1, 1]
        assert rollout.samples[-1].weight_versions == [6, 6]
        assert rollout.counts["turns_kept"] == len(saved[member])
    assert group.oldest_version == 5


async def test_after_a_lost_server_a_rollout_goes_on_with_its_turns(make_worker: Any, server: SimulatedServer):
    server.fail_after = 2
    group = await make_worker().run_group(prompt=PROMPT, slot=0, num_rollouts=1, version=5)
    assert (group.rollouts[0].stop_reason, group.rollouts[0].num_retries) == (StopReason.ANSWERED, 1)
    assert len(server.prompts) == NUM_TURNS


async def test_while_the_gate_is_closed_no_call_sees_two_versions(make_worker: Any, server: SimulatedServer):
    worker = make_worker()
    running = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=0, num_rollouts=4, version=5))
    await until(lambda: len(server.prompts) >= 4)
    assert await worker.hold(5.0)
    num_calls, server.version = len(server.prompts), 6
    await asyncio.sleep(0.02)
    assert len(server.prompts) == num_calls
    await worker.release()
    group = await running
    versions = [tuple(s.weight_versions) for rollout in group.rollouts for s in rollout.samples]
    assert set(versions) == {(5, 5), (6, 6)}
    assert all(rollout.seconds["waiting"] > 0 for rollout in group.rollouts)


async def test_a_gate_that_cannot_be_closed_in_time_says_so(make_worker: Any, server: SimulatedServer):
    server.hold = {"0"}
    worker = make_worker()
    running = asyncio.create_task(worker.run_group(prompt=PROMPT, slot=0, num_rollouts=1, version=5))
    await until(lambda: server.prompts)
    assert not await worker.hold(0.01)
    running.cancel()


async def test_a_timeline_has_queue_generation_and_reward(make_worker: Any):
    worker = make_worker(max_concurrent_rollouts=1)
    group = await worker.run_group(prompt=PROMPT, slot=0, num_rollouts=2, version=5)
    for rollout in group.rollouts:
        kinds = [span.kind for span in rollout.spans]
        assert kinds == ["queue", *["generation"] * NUM_TURNS, "reward"]
        ends = [span.start + span.seconds for span in rollout.spans]
        assert all(a <= b.start + 1e-3 for a, b in zip(ends, rollout.spans[1:]))
    assert max(rollout.seconds["queue"] for rollout in group.rollouts) >= min(r.seconds["generation"] for r in group.rollouts)
    usage = await worker.usage()
    assert usage.num_calls == 2 * NUM_TURNS and 0 < usage.busy_seconds <= usage.call_seconds + 1e-6
    assert (await worker.ready()).num_ended == 2


@pytest.mark.parametrize(
    ("name", "words"), [("broken_function", "KeyError: 'mine'"), ("bad_function", "loss_mask has 0 entries")]
)
async def test_a_users_orchestration_that_fails_costs_its_group(make_worker: Any, name: str, words: str):
    group = await make_worker(group_function=f"{__file__}:{name}").run_group(prompt=PROMPT, slot=4, num_rollouts=2, version=5)
    assert [rollout.stop_reason for rollout in group.rollouts] == [StopReason.GENERATE_RAISED] * 2
    assert all(words in rollout.error for rollout in group.rollouts)


async def test_a_group_reward_of_the_wrong_length_takes_the_group_out_of_the_baseline(make_worker: Any):
    worker = make_worker(group_reward=f"{__file__}:one_reward_too_few")
    group = await worker.run_group(prompt=PROMPT, slot=0, num_rollouts=2, version=5)
    assert {rollout.stop_reason for rollout in group.rollouts} == {StopReason.REWARD_RAISED}
    assert all("1 rewards for 2 rollouts" in rollout.error and not rollout.counting.in_baseline for rollout in group.rollouts)


async def test_a_worker_tells_once_what_has_ended_of_its_unfinished_groups(make_worker: Any, server: SimulatedServer):
    server.hold = {"1"}
    worker = make_worker()
    arguments = {"prompt": PROMPT, "slot": 3, "num_rollouts": 2, "version": 5}
    running = asyncio.ensure_future(worker.work(7, "run_group", arguments))
    news: dict[int, Any] = {}
    while not news:
        await asyncio.sleep(0.001)
        news = (await worker.ready()).news
    assert list(news) == [7] and list(news[7]) == [0] and news[7][0].stop_reason is StopReason.ANSWERED
    assert (await worker.ready()).news == {}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    again = GroupProgress(prompt_index=3, version=5, turns={1: []}).with_finished(news[7])
    num_asked = len(server.prompts)
    server.hold = set()
    group = await worker.run_group(prompt=PROMPT, slot=3, num_rollouts=2, version=5, progress=again)
    assert len(server.prompts) - num_asked <= NUM_TURNS and group.rollouts[0] is news[7][0]
