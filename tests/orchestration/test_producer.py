"""The producer's promises: bounded staleness, no prompt lost or doubled, nothing finished dropped, an end to hopeless runs."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from vime.algorithm.filter import dynamic_sampling
from vime.config import RolloutConfig
from vime.errors import InfrastructureError
from vime.orchestration.buffer import Buffer
from vime.orchestration.journal import Journal
from vime.orchestration.producer import Producer
from vime.types import Group, Prompt, Rollout, Sample, StopReason, rollout_id_of
from vime.workers.group_run import GroupProgress, Resampled


class CountingSource:
    """Prompts 0, 1, 2, …"""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> Prompt:
        self.position += 1
        index = self.position - 1
        return Prompt(index=index, row=index, messages=[{"role": "user", "content": "?"}], ground_truth=[])


class Runner:
    """Finishes groups after a few turns of the event loop, the later ones first; `hold` keeps prompts from ending."""

    def __init__(self, stop: Callable[[int, int], StopReason] = lambda prompt, member: StopReason.ANSWERED) -> None:
        self.started: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.held: set[int] = set()
        self.kept: list[list[int]] = []
        self.token_age = 0
        self.stop = stop
        self.resamples = False
        self.asked: list[int] = []
        self.versions: dict[int, int] = {}
        """Version of the oldest token by slot."""

    async def run_group(
        self,
        *,
        prompt: Prompt,
        slot: int,
        num_rollouts: int,
        version: int,
        num_wanted: int | None,
        progress: GroupProgress | None,
    ) -> Group:
        self.started.append((prompt.index, version))
        self.versions[slot] = version
        finished = dict(progress.finished) if progress else {}
        self.kept.append(sorted(finished))
        try:
            for _ in range(10 - slot % 5):
                await asyncio.sleep(0)
            while prompt.index in self.held:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(prompt.index)
            raise
        first = max(finished, default=-1) + 1
        for member in range(first, first + num_rollouts - len(finished)):
            sample = Sample(loss_mask=[1], weight_versions=[self.versions[slot] - self.token_age])
            rollout = Rollout(rollout_id=rollout_id_of(slot, member), group_index=slot, samples=[sample], error="broken hook")
            rollout.reward, rollout.stop_reason = float(member), self.stop(prompt.index, member)
            finished[member] = rollout
        return Group(index=slot, prompt=prompt, rollouts=list(finished.values()), weight_version=version)

    async def resample(self, *, slot: int, oldest: int, version: int) -> Resampled | None:
        self.asked.append(slot)
        await asyncio.sleep(0)
        if not self.resamples:
            return None
        self.versions[slot] = version
        return Resampled(version=version, members=(0, 1))

    async def progress(self) -> dict[int, GroupProgress]:
        return {}


def make(runner: Runner, buffer: Buffer | None = None, keep: Any = None, **settings: Any) -> tuple[Producer, CountingSource]:
    config = RolloutConfig(num_prompts=4, num_samples_per_prompt=2, **settings)
    source = CountingSource()
    return Producer(config, source=source, runner=runner, buffer=Buffer() if buffer is None else buffer, keep=keep), source


async def next_batch(producer: Producer) -> tuple[list[int], dict[str, float]]:
    groups, metrics = await asyncio.wait_for(producer.batch(), 5)
    return [group.prompt.index for group in groups], metrics


def within_limits(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10))


@pytest.mark.parametrize(
    ("max_staleness", "num_oversampled", "partial"),
    [(0, 0, False), (1, 0, False), (3, 0, False), (0, 2, False), (2, 3, False), (2, 3, True)],
)
def test_no_token_is_trained_beyond_its_staleness_and_no_prompt_twice(max_staleness: int, num_oversampled: int, partial: bool):
    async def scenario() -> None:
        producer, _ = make(
            Runner(), max_staleness=max_staleness, num_oversampled_prompts=num_oversampled, partial_rollouts=partial
        )
        seen: list[int] = []
        for step in range(8):
            producer.set_version(step)
            groups, _ = await asyncio.wait_for(producer.batch(), 5)
            assert all(step - group.oldest_version <= max_staleness for group in groups)
            seen += [group.prompt.index for group in groups]
        assert len(set(seen)) == 32
        if not num_oversampled:
            assert sorted(seen) == list(range(32))
        await producer.stop()

    within_limits(scenario())


def test_synchronous_training_starts_nothing_ahead():
    async def scenario() -> None:
        producer, source = make(Runner())
        producer.set_version(0)
        await next_batch(producer)
        assert source.position == 4
        await producer.stop()

    within_limits(scenario())


def test_the_last_batches_start_nothing_that_is_not_trained():
    async def scenario() -> None:
        producer, source = make(Runner(), max_staleness=3)
        for step in range(5):
            producer.set_version(step, num_batches_left=5 - step)
            await next_batch(producer)
        assert source.position == 20
        await producer.stop()

    within_limits(scenario())


def test_finished_groups_overtake_a_slow_one_until_it_would_be_too_old():
    async def scenario() -> None:
        runner = Runner()
        runner.held = {0}
        producer, _ = make(runner, max_staleness=1)
        producer.set_version(0)
        first, _ = await next_batch(producer)
        assert len(first) == 4 and 0 not in first
        producer.set_version(1)
        waiting = asyncio.create_task(producer.batch())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done(), "prompt 0 must be trained now or never"
        runner.held = set()
        groups, _ = await waiting
        assert sorted([g.prompt.index for g in groups] + first) == list(range(8))
        await producer.stop()

    within_limits(scenario())


def test_a_late_group_whose_stale_rollouts_are_sampled_again_is_trained_later_and_no_prompt_is_lost():
    async def scenario() -> None:
        runner = Runner()
        runner.held, runner.resamples = {0}, True
        producer, _ = make(runner, max_staleness=1)
        seen: list[int] = []
        resampled = 0.0
        for step in range(6):
            if step == 4:
                runner.held = set()
            producer.set_version(step, num_batches_left=6 - step)
            groups, metrics = await asyncio.wait_for(producer.batch(), 5)
            assert all(0 <= step - group.oldest_version <= 1 for group in groups)
            resampled += metrics.get("rollout/num_rollouts_resampled", 0.0)
            seen += [group.prompt.index for group in groups]
            assert step >= 4 or 0 not in seen, "the batch went without it"
            if 1 <= step < 4:
                saved = (await producer.state())["slots"]["0"]
                assert (saved["version"], saved["group"]) == (step, None), "a resumed run knows its bound"
        assert sorted(seen) == list(range(24)) and not runner.cancelled
        assert runner.asked == [0] * len(runner.asked) and resampled == 2 * len(runner.asked) >= 6
        await producer.stop()

    within_limits(scenario())


def test_a_group_is_not_late_before_half_of_all_groups_have_finished():
    buffer, source = Buffer(), CountingSource()
    bound = {"version": 3, "max_staleness": 3}
    for version in (0, 0, 1, 1, 2, 2, 3, 3):
        buffer.admit(source.next())
        buffer.start(version, max_staleness=3)
    for slot in (1, 2, 3):
        assert buffer.late(2, **bound) == []
        buffer.finish(slot, Group(prompt=buffer[slot].prompt, weight_version=slot // 2))
        assert buffer.take(2, **bound) is None, "slot 0 must be trained now or never"
    assert buffer.late(2, **bound) == [], "it is no slower than most"
    buffer.finish(4, Group(prompt=buffer[4].prompt, weight_version=2))
    assert buffer.take(2, **bound) is None and buffer.late(2, **bound) == [0]
    buffer.resampled(0, version=3)
    assert buffer.late(2, **bound) == []
    groups = buffer.take(2, **bound)
    assert groups is not None and [group.prompt.index for group in groups] == [1, 2]


def test_while_a_batch_waits_for_a_late_group_its_stale_rollouts_are_asked_for_until_they_can_be_sampled_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("vime.orchestration.producer.ASK_AGAIN_SECONDS", 0.001)

    async def scenario() -> None:
        runner = Runner()
        runner.held = {0}
        producer, _ = make(runner, max_staleness=1)
        producer.set_version(0)
        await next_batch(producer)
        producer.set_version(1)
        waiting = asyncio.create_task(producer.batch())
        while len(runner.asked) < 3:  # one of them is still at work
            await asyncio.sleep(0.001)
        assert not waiting.done()
        runner.resamples = True
        groups, metrics = await waiting
        assert 0 not in [group.prompt.index for group in groups] and metrics["rollout/num_rollouts_resampled"] == 2
        assert runner.asked == [0] * len(runner.asked)
        runner.held = set()
        await producer.stop()

    within_limits(scenario())


def test_in_synchronous_training_nothing_is_late():
    async def scenario() -> None:
        runner = Runner()
        runner.held, runner.resamples = {1}, True
        producer, _ = make(runner, num_oversampled_prompts=0)
        producer.set_version(0)
        waiting = asyncio.create_task(producer.batch())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done() and not runner.asked
        runner.held = set()
        await waiting
        await producer.stop()

    within_limits(scenario())


def test_an_answer_about_a_group_that_has_finished_meanwhile_changes_nothing():
    async def scenario() -> None:
        runner = Runner()
        runner.held, runner.resamples = {0}, True
        answer = asyncio.Event()

        async def resample(*, slot: int, oldest: int, version: int) -> Resampled:
            runner.held = set()
            await answer.wait()
            return Resampled(version=version, members=(0,))

        runner.resample = resample
        buffer = Buffer()
        producer, _ = make(runner, buffer=buffer, max_staleness=1)
        producer.set_version(0)
        await next_batch(producer)
        producer.set_version(1)
        batch, metrics = await next_batch(producer)
        assert 0 in batch and "rollout/num_rollouts_resampled" not in metrics
        answer.set()
        producer.set_version(2)
        batch, metrics = await next_batch(producer)
        assert "rollout/num_rollouts_resampled" not in metrics
        await producer.stop()

    within_limits(scenario())


def test_of_more_groups_than_a_batch_takes_the_last_are_stopped_and_their_prompts_come_again():
    async def scenario() -> None:
        runner = Runner()
        runner.held = {1, 2}
        producer, _ = make(runner, num_oversampled_prompts=2)
        producer.set_version(0)
        first, metrics = await next_batch(producer)
        assert first == [0, 3, 4, 5] and metrics["rollout/num_groups_aborted"] == 2
        await asyncio.sleep(0)
        assert sorted(runner.cancelled) == [1, 2]
        runner.held = set()
        producer.set_version(1)
        second, _ = await next_batch(producer)
        assert [entry for entry in runner.started if entry[0] in (1, 2)] == [(1, 0), (2, 0), (1, 1), (2, 1)]
        assert {1, 2} & set(second)
        await producer.stop()

    within_limits(scenario())


def test_partial_rollouts_go_on_in_the_next_batch():
    async def scenario() -> None:
        runner = Runner()
        runner.held = {1, 2}
        producer, source = make(runner, num_oversampled_prompts=2, partial_rollouts=True, max_staleness=1)
        producer.set_version(0)
        first, metrics = await next_batch(producer)
        assert first == [0, 3, 4, 5] and "rollout/num_groups_aborted" not in metrics and source.position == 6
        producer.set_version(1)
        runner.held = set()
        second, _ = await next_batch(producer)
        assert {1, 2} <= set(second) and not runner.cancelled and source.position == 10
        await producer.stop()

    within_limits(scenario())


def test_a_group_with_a_token_that_is_too_old_is_refused_and_its_prompt_comes_again():
    async def scenario() -> None:
        runner = Runner()
        runner.token_age = 2
        producer, _ = make(runner, max_staleness=1)
        producer.set_version(3)
        while len(runner.started) < 12:
            await asyncio.sleep(0)
        runner.token_age = 0
        groups, metrics = await asyncio.wait_for(producer.batch(), 5)
        assert metrics["rollout/num_groups_refused"] >= 4
        assert all(group.oldest_version == 3 for group in groups)
        assert len({group.prompt.index for group in groups}) == 4
        await producer.stop()

    within_limits(scenario())


def test_servers_whose_tokens_are_always_too_old_stop_the_run():
    async def scenario() -> None:
        runner = Runner()
        runner.token_age = 2
        producer, _ = make(runner, max_staleness=1)
        producer.set_version(3)
        with pytest.raises(InfrastructureError, match="label what they sample"):
            await next_batch(producer)
        await producer.stop()

    within_limits(scenario())


def test_a_filtered_group_is_replaced_by_another_prompt():
    async def scenario() -> None:
        producer, _ = make(Runner(), keep=lambda config, group: group.prompt.index != 1)
        producer.set_version(0)
        batch, metrics = await next_batch(producer)
        assert sorted(batch) == [0, 2, 3, 4]
        assert metrics["rollout/num_groups_filtered"] == 1
        await producer.stop()

    within_limits(scenario())


def test_dapo_keeps_groups_whose_counted_rewards_differ():
    def group(*rollouts: tuple[float, StopReason]) -> Group:
        prompt = Prompt(index=0, row=0, messages=[], ground_truth=[])
        return Group(prompt=prompt, rollouts=[Rollout(rollout_id=0, group_index=0, reward=r, stop_reason=s) for r, s in rollouts])

    answered = StopReason.ANSWERED
    assert dynamic_sampling(RolloutConfig(), group((1.0, answered), (0.0, answered)))
    assert not dynamic_sampling(RolloutConfig(), group((1.0, answered), (1.0, answered), (0.0, StopReason.SERVER_LOST)))


def test_failed_rollouts_are_run_again_until_the_group_is_large_enough_and_finished_ones_are_kept():
    run: list[int] = []

    def stop(prompt: int, member: int) -> StopReason:
        if prompt != 2:
            return StopReason.ANSWERED
        run.append(member)
        return StopReason.SERVER_LOST if len(run) == 2 else StopReason.ANSWERED

    async def scenario() -> None:
        runner = Runner(stop)
        producer, _ = make(runner, min_rollouts_per_group=2)
        producer.set_version(0)
        groups, metrics = await asyncio.wait_for(producer.batch(), 5)
        assert run == [0, 1, 1] and sorted(runner.kept) == [[], [], [], [], [0]]
        assert (metrics["rollout/num_groups_repeated"], metrics["rollout/num_failed"]) == (1, 1)
        assert metrics["rollout/num_rollouts"] == 9, "the one that was kept counts once"
        assert all([r.counting.in_baseline for r in group.rollouts] == [True, True] for group in groups)
        await producer.stop()

    within_limits(scenario())


def test_a_prompt_on_which_everything_fails_is_given_up_for_another():
    async def scenario() -> None:
        runner = Runner(lambda prompt, member: StopReason.GENERATE_RAISED if prompt == 3 else StopReason.ANSWERED)
        producer, _ = make(runner, max_infrastructure_failure_share=0.9)
        producer.set_version(0)
        batch, metrics = await next_batch(producer)
        assert batch == [0, 1, 2, 4] and metrics["rollout/num_prompts_given_up"] == 1
        assert metrics["rollout/num_groups_repeated"] == RolloutConfig().max_group_repeats
        await producer.stop()

    within_limits(scenario())


def test_a_hopeless_run_stops_with_the_cause():
    async def scenario() -> None:
        producer, _ = make(Runner(lambda prompt, member: StopReason.GENERATE_RAISED))
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match="generate_raised: broken hook"):
            await next_batch(producer)
        await producer.stop()

    within_limits(scenario())


def test_rollouts_that_were_not_needed_are_no_failures():
    async def scenario() -> None:
        producer, _ = make(Runner(lambda prompt, member: StopReason.ABORTED if member > 1 else StopReason.ANSWERED))
        producer._config.num_oversampled_samples_per_prompt = 6
        producer.set_version(0)
        _, metrics = await next_batch(producer)
        assert metrics["rollout/num_aborted"] == 24 and "rollout/num_failed" not in metrics
        await producer.stop()

    within_limits(scenario())


def test_a_filter_that_drops_everything_stops_the_run():
    async def scenario() -> None:
        producer, _ = make(Runner(), keep=lambda config, group: False)
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match=r"rollout\.filter dropped"):
            await next_batch(producer)
        await producer.stop()

    within_limits(scenario())


def test_an_error_between_two_batches_ends_the_next_one():
    async def scenario() -> None:
        def broken(prompt: int, member: int) -> StopReason:
            raise KeyError("a runner's mistake")

        producer, _ = make(Runner(broken))
        producer.set_version(0)
        for _ in range(30):
            await asyncio.sleep(0)
        with pytest.raises(KeyError, match="a runner's mistake"):
            await next_batch(producer)
        await producer.stop()

    within_limits(scenario())


@pytest.mark.parametrize("num_oversampled", [0, 3])
def test_after_a_restart_no_prompt_is_skipped_or_doubled(num_oversampled: int):
    async def scenario() -> None:
        settings: dict[str, Any] = {"max_staleness": 2, "num_oversampled_prompts": num_oversampled}
        producer, source = make(Runner(), **settings)
        producer.set_version(0)
        first, _ = await next_batch(producer)
        state, position = json.loads(json.dumps(await producer.state())), source.position
        await producer.stop()

        restored = Buffer()
        restored.load(state)
        again, source = make(Runner(), restored, **settings)
        source.position = position
        rest: list[int] = []
        for step in range(1, 4):
            again.set_version(step)
            rest += (await next_batch(again))[0]
        seen = sorted(first + rest)
        assert len(set(seen)) == 16
        if not num_oversampled:
            assert seen == list(range(16))
        await again.stop()

    within_limits(scenario())


async def test_a_group_that_had_finished_before_a_kill_is_not_generated_again(tmp_path):
    journal = Journal(tmp_path)
    journal.begin(0)
    config = RolloutConfig(num_prompts=4, num_samples_per_prompt=2)
    runner = Runner()
    runner.held = {1, 3}
    killed = Producer(config, source=CountingSource(), runner=runner, buffer=Buffer(), journal=journal)
    finished = asyncio.Event()
    killed.on_group = lambda group: finished.set() if group.prompt.index == 0 else None  # prompt 2 ends before it
    killed.set_version(0)
    await asyncio.wait_for(finished.wait(), 5)
    await killed.stop()

    journal = Journal(tmp_path)
    assert journal.recall(0) == 2
    runner = Runner()
    resumed = Producer(config, source=CountingSource(), runner=runner, buffer=Buffer(), journal=journal)
    resumed.set_version(0)
    rows, metrics = await next_batch(resumed)
    assert rows == [0, 1, 2, 3] and metrics["rollout/num_groups_recalled"] == 2
    assert runner.started == [(1, 0), (3, 0)]


async def test_a_slow_disk_holds_up_no_batch_and_the_journal_is_whole_in_the_end(tmp_path, monkeypatch: pytest.MonkeyPatch):
    may_write = threading.Event()
    write = Journal._write

    def slowly(self: Journal, path: Path, group: Group) -> None:
        assert may_write.wait(10), "nobody else could work meanwhile"
        write(self, path, group)

    monkeypatch.setattr(Journal, "_write", slowly)
    journal = Journal(tmp_path)
    journal.begin(0)
    config = RolloutConfig(num_prompts=4, num_samples_per_prompt=2)
    producer = Producer(config, source=CountingSource(), runner=Runner(), buffer=Buffer(), journal=journal)
    producer.set_version(0, num_batches_left=1)
    rows, _ = await next_batch(producer)
    assert rows == [0, 1, 2, 3] and not list(tmp_path.iterdir())
    may_write.set()
    await producer.stop()
    assert Journal(tmp_path).recall(0) == 4


async def test_a_group_that_cannot_be_put_down_ends_the_run_with_the_cause(tmp_path, monkeypatch: pytest.MonkeyPatch):
    def broken(self: Journal, path: Path, group: Group) -> None:
        raise TypeError("no JSON")

    monkeypatch.setattr(Journal, "_write", broken)
    journal = Journal(tmp_path)
    journal.begin(0)
    config = RolloutConfig(num_prompts=4, num_samples_per_prompt=2)
    producer = Producer(config, source=CountingSource(), runner=Runner(), buffer=Buffer(), journal=journal)
    producer.set_version(0, num_batches_left=2)
    with pytest.raises(TypeError, match="no JSON"):
        for version in (0, 1):
            producer.set_version(version, num_batches_left=2 - version)
            await next_batch(producer)
            await asyncio.gather(*producer._tasks.values(), return_exceptions=True)
    await producer.stop()


def test_a_filter_that_raises_keeps_the_group_and_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture):
    async def scenario() -> None:
        def keep(config: RolloutConfig, group: Group) -> bool:
            if group.prompt.index == 2:
                raise KeyError("no such metric")
            return group.prompt.index != 1

        producer, _ = make(Runner(), keep=keep, max_infrastructure_failure_share=0.5)
        for version, batch in enumerate(([0, 2, 3, 4], [5, 6, 7, 8])):
            producer.set_version(version)
            prompts, metrics = await next_batch(producer)
            assert sorted(prompts) == batch
            assert metrics.get("rollout/num_filter_failures", 0.0) == float(version == 0)
        await producer.stop()

    asyncio.run(scenario())
    assert [record.exc_info is not None for record in caplog.records if "rollout.filter" in record.message] == [True]


def test_a_filter_that_always_raises_ends_the_run_with_the_cause():
    async def scenario() -> None:
        def keep(config: RolloutConfig, group: Group) -> bool:
            raise KeyError("no such metric")

        producer, _ = make(Runner(), keep=keep, filter="mine.keep")
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match=r"rollout\.filter=mine\.keep raised for \d of \d groups.*no such metric"):
            await next_batch(producer)
            producer.set_version(1)
            await next_batch(producer)
        await producer.stop()

    asyncio.run(scenario())


def test_a_generate_that_always_aborts_ends_the_run_with_the_cause():
    async def scenario() -> None:
        producer, _ = make(Runner(lambda prompt, member: StopReason.ABORTED))
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match="aborted: broken hook"):
            await next_batch(producer)
        await producer.stop()

    asyncio.run(scenario())


class Rows(Runner):
    """Groups of rows that cannot begin end at once, in `reason`; the others are held until `release`."""

    def __init__(self, bad: Callable[[int], bool], reason: StopReason) -> None:
        super().__init__(lambda prompt, member: reason if bad(prompt) else StopReason.ANSWERED)
        self.bad, self.released = bad, asyncio.Event()

    async def run_group(self, *, prompt: Prompt, **arguments: Any) -> Group:
        if not self.bad(prompt.index):
            await self.released.wait()
        group = await super().run_group(prompt=prompt, **arguments)
        if self.bad(prompt.index):
            for rollout in group.rollouts:
                rollout.samples = []
        return group


@pytest.mark.parametrize("reason", [StopReason.TOKEN_LIMIT, StopReason.REQUEST_REFUSED, StopReason.GENERATE_RAISED])
@pytest.mark.parametrize("bad", [{1}, {7}, {0, 2}])
def test_rows_that_fail_at_once_are_given_up_while_all_others_are_still_at_work(reason: StopReason, bad: set[int], caplog: Any):
    async def scenario() -> None:
        runner = Rows(bad.__contains__, reason)
        producer = Producer(
            RolloutConfig(num_prompts=8, num_samples_per_prompt=2), source=CountingSource(), runner=runner, buffer=Buffer()
        )
        producer.set_version(0)
        batch = asyncio.create_task(next_batch(producer))
        await asyncio.sleep(0.05)
        assert not batch.done()
        runner.released.set()
        indices, metrics = await batch
        assert sorted(indices) == [index for index in range(8 + len(bad)) if index not in bad]
        assert metrics["rollout/num_prompts_given_up"] == len(bad)
        is_of_the_row = reason is not StopReason.GENERATE_RAISED
        asked = [index for index, _ in runner.started]
        assert all(asked.count(index) == (1 if is_of_the_row else 4) for index in bad)
        await producer.stop()

    with caplog.at_level("WARNING"):
        within_limits(scenario())
    assert all(f"row {index} of train: broken hook" in caplog.text for index in bad)


@pytest.mark.parametrize("reason", [StopReason.TOKEN_LIMIT, StopReason.REQUEST_REFUSED])
def test_data_of_which_no_row_can_begin_ends_the_run_with_the_row(reason: StopReason):
    async def scenario() -> None:
        producer, _ = make(Rows(lambda index: True, reason))
        producer.set_version(0)
        await next_batch(producer)

    with pytest.raises(InfrastructureError, match=r"the prompts of 16 of 16 groups were given up.*row 1\d of train: broken hook"):
        within_limits(scenario())
