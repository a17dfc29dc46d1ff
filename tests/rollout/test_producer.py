"""The producer's promises: bounded staleness, no prompt lost or doubled, and an end to hopeless runs."""

import asyncio

import pytest

from vime.config import RolloutConfig
from vime.data.buffer import Buffer
from vime.errors import InfrastructureError
from vime.rollout.producer import Producer
from vime.types import Group, Prompt, Rollout, StopReason


class CountingSource:
    """Prompts 0, 1, 2, …"""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> Prompt:
        self.position += 1
        index = self.position - 1
        return Prompt(index=index, row=index, messages=[{"role": "user", "content": "?"}], ground_truth=[])


class Runner:
    """Finishes groups after a few turns of the event loop, the later ones first."""

    def __init__(self, stop: StopReason = StopReason.ANSWERED) -> None:
        self.started: list[tuple[int, int]] = []
        self.stop = stop

    async def run_group(self, *, prompt: Prompt, slot: int, num_rollouts: int, version: int) -> Group:
        self.started.append((slot, version))
        for _ in range(10 - slot % 5):
            await asyncio.sleep(0)
        rollouts = [
            Rollout(rollout_id=slot * 10 + i, group_index=slot, reward=float(i), stop_reason=self.stop, error="broken hook")
            for i in range(num_rollouts)
        ]
        return Group(prompt=prompt, rollouts=rollouts, weight_version=version)


def make(runner: Runner, buffer: Buffer | None = None, keep=None, **settings) -> tuple[Producer, CountingSource]:
    config = RolloutConfig(num_prompts=4, num_samples_per_prompt=2, **settings)
    source = CountingSource()
    return Producer(config, source=source, runner=runner, buffer=buffer or Buffer(), keep=keep), source


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_no_group_is_trained_beyond_its_staleness(max_staleness: int):
    async def scenario() -> None:
        producer, _ = make(Runner(), max_staleness=max_staleness)
        producer.set_version(0)
        seen: list[int] = []
        for step in range(6):
            groups, _ = await asyncio.wait_for(producer.batch(), 5)
            assert all(step - group.weight_version <= max_staleness for group in groups)
            seen += [group.prompt.index for group in groups]
            producer.set_version(step + 1)
        assert seen == list(range(24))
        await producer.stop()

    asyncio.run(scenario())


def test_synchronous_training_starts_nothing_ahead():
    async def scenario() -> None:
        producer, source = make(Runner())
        producer.set_version(0)
        await producer.batch()
        assert source.position == 4
        await producer.stop()

    asyncio.run(scenario())


def test_a_filtered_group_is_replaced_by_another_prompt():
    async def scenario() -> None:
        producer, _ = make(Runner(), keep=lambda config, group: group.prompt.index != 1)
        producer.set_version(0)
        groups, metrics = await asyncio.wait_for(producer.batch(), 5)
        assert sorted(group.prompt.index for group in groups) == [0, 2, 3, 4]
        assert metrics["rollout/num_groups_filtered"] == 1
        await producer.stop()

    asyncio.run(scenario())


def test_a_hopeless_run_stops_with_the_cause():
    async def scenario() -> None:
        producer, _ = make(Runner(stop=StopReason.GENERATE_RAISED))
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match="generate_raised: broken hook"):
            await asyncio.wait_for(producer.batch(), 5)
        await producer.stop()

    asyncio.run(scenario())


def test_a_filter_that_drops_everything_stops_the_run():
    async def scenario() -> None:
        producer, _ = make(Runner(), keep=lambda config, group: False)
        producer.set_version(0)
        with pytest.raises(InfrastructureError, match=r"rollout\.filter dropped"):
            await asyncio.wait_for(producer.batch(), 5)
        await producer.stop()

    asyncio.run(scenario())


def test_after_a_restart_no_prompt_is_skipped_or_doubled():
    async def scenario() -> None:
        buffer = Buffer()
        producer, source = make(Runner(), buffer, max_staleness=2)
        producer.set_version(0)
        first, _ = await producer.batch()
        state, position = producer.state(), source.position
        await producer.stop()

        restored = Buffer()
        restored.load(state)
        again, source = make(Runner(), restored, max_staleness=2)
        source.position = position
        again.set_version(1)
        rest: list[int] = []
        for step in range(1, 4):
            groups, _ = await asyncio.wait_for(again.batch(), 5)
            rest += [group.prompt.index for group in groups]
            again.set_version(step + 1)
        assert [group.prompt.index for group in first] + rest == list(range(16))
        await again.stop()

    asyncio.run(scenario())
