"""A user's class in the producer's place: its batches are numbered and checked, and its mistakes end the run with its name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vime.config import RolloutConfig, RunConfig
from vime.errors import CheckpointError, HookError, InfrastructureError
from vime.orchestration.buffer import Buffer
from vime.orchestration.own_producer import OwnProducer
from vime.orchestration.producer import Producer
from vime.types import Group, Prompt, Rollout, Sample, StopReason

PRODUCER = '''
import asyncio
from vime.types import Group, Rollout, Sample, Status


class Ahead:
    """One batch ahead of the trainer, its prompts in pairs of which the better is kept."""

    def __init__(self, config, source, runner):
        self.config, self.source, self.runner = config.rollout, source, runner
        self.waiting, self.dropped = [], 0

    async def pick(self):
        pair = await asyncio.gather(*[self.runner.run_group(self.source.next()) for _ in range(2)])
        self.dropped += 1
        return max(pair, key=lambda group: group.rollouts[-1].reward)

    async def batch(self, version):
        while len(self.waiting) < 2 * self.config.num_prompts:
            self.waiting.append(asyncio.create_task(self.pick()))
        taken, self.waiting = self.waiting[: self.config.num_prompts], self.waiting[self.config.num_prompts :]
        return await asyncio.gather(*taken)

    def state(self):
        return {"dropped": self.dropped}

    def load(self, state):
        self.dropped = state["dropped"]

    async def stop(self):
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)


class ByHand:
    """Makes its groups itself, as slime's generate_rollout does."""

    def __init__(self, config, source, runner):
        self.source, self.num_groups, self.age = source, config.rollout.num_prompts, 0
        self.change = lambda groups: groups

    async def batch(self, version):
        groups = []
        for _ in range(self.num_groups):
            prompt = self.source.next()
            samples = [
                Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-0.1],
                       weight_versions=[version - self.age], reward=float(n), status=Status.TRUNCATED)
                for n in range(2)
            ]
            rollouts = [Rollout(rollout_id=0, group_index=0, samples=[sample]) for sample in samples]
            groups.append(Group(prompt=prompt, rollouts=rollouts))
        return self.change(groups)


class Broken:
    def __init__(self, config, source, runner):
        pass

    async def batch(self, version):
        return {}["no such key"]

    def state(self):
        return {"group": object()}

    def load(self, state):
        pass
'''


class Source:
    """Prompts 0, 1, 2, …"""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> Prompt:
        self.position += 1
        return Prompt(index=self.position - 1, row=self.position - 1, messages=[], ground_truth=[])


class Workers:
    """Answers at once, the reward of a rollout being its prompt's number; or fails always."""

    def __init__(self, stop_reason: StopReason = StopReason.ANSWERED) -> None:
        self.stop_reason = stop_reason
        self.slots: list[int] = []

    async def run_group(self, *, prompt: Prompt, slot: int, num_rollouts: int, version: int, **_: Any) -> Group:
        await asyncio.sleep(0)
        self.slots.append(slot)
        group = Group(prompt=prompt, weight_version=version)
        for member in range(num_rollouts):
            sample = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-0.1], weight_versions=[version])
            rollout = Rollout(rollout_id=member, group_index=slot, samples=[sample], reward=float(prompt.index), error="no luck")
            rollout.stop_reason = self.stop_reason
            group.rollouts.append(rollout)
        return group

    async def resample(self, *, slot: int, oldest: int, version: int) -> None:
        return None

    async def progress(self) -> dict[int, Any]:
        return {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PRODUCER)
    return tmp_path / "mine.py"


def make(file: Path, name: str, workers: Any = None, **settings: Any) -> OwnProducer:
    config = RunConfig(rollout=RolloutConfig(num_prompts=2, num_samples_per_prompt=2, **settings))
    return OwnProducer(config, path=f"{file}:{name}", source=Source(), runner=workers or Workers(), version=0)


def ids(groups: list[Group]) -> list[int]:
    return [rollout.rollout_id for group in groups for rollout in group.rollouts]


async def test_it_decides_what_runs_and_goes_on_beside_the_training(file: Path):
    workers = Workers()
    producer = make(file, "Ahead", workers, max_staleness=1)
    seen: list[int] = []
    for version in range(3):
        producer.set_version(version, num_batches_left=3 - version)
        groups, metrics = await producer.batch()
        seen += ids(groups)
        assert [group.prompt.index % 2 for group in groups] == [1, 1], "the better of each pair"
        assert metrics["rollout/num_groups"] == 2 and metrics["rollout/num_rollouts"] == 4
        await asyncio.sleep(0.01)  # training, meanwhile the next batch is there already
        assert len(workers.slots) == 8 + 4 * version
    assert len(set(seen)) == len(seen) == 12
    await producer.stop()


async def test_it_goes_on_with_its_state_and_new_numbers(file: Path):
    first = make(file, "Ahead", max_staleness=1)
    groups, _ = await first.batch()
    state = await first.state()
    assert state["own"] == {"dropped": 4} or state["own"]["dropped"] >= 2
    second = make(file, "Ahead", max_staleness=1)
    second.load(state)
    later, _ = await second.batch()
    assert not set(ids(groups)) & set(ids(later))
    assert (await second.state())["own"]["dropped"] > state["own"]["dropped"]
    await first.stop()
    await second.stop()


async def test_groups_made_by_hand_are_numbered_and_completed(file: Path):
    producer = make(file, "ByHand")
    groups = (await producer.batch())[0] + (await producer.batch())[0]
    assert len(set(ids(groups))) == 8
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {(rollout.stop_reason, rollout.reward) for rollout in rollouts} == {(StopReason.TOKEN_LIMIT, r) for r in (0.0, 1.0)}
    assert all(sample.rollout_id == rollout.rollout_id for rollout in rollouts for sample in rollout.samples)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda groups: groups[:1], "1 groups; a batch is rollout.num_prompts=2"),
        (lambda groups: [groups[0], groups[0]], "different ones"),
        (lambda groups: tuple(groups), "returned tuple"),
        (lambda groups: [group.rollouts for group in groups], "not a list of groups"),
        (lambda groups: groups[0].rollouts[0].samples[0].loss_mask.append(1) or groups, "loss_mask has 2 entries"),
    ],
)
async def test_a_batch_that_cannot_be_trained_is_refused_by_name(file: Path, change: Any, words: str):
    producer = make(file, "ByHand")
    producer._own.change = change
    with pytest.raises((HookError, ValueError), match=words):
        await producer.batch()


async def test_tokens_that_are_too_old_are_refused(file: Path):
    producer = make(file, "ByHand", max_staleness=1)
    producer.set_version(5)
    producer._own.age = 1
    assert len((await producer.batch())[0]) == 2
    producer._own.age = 2
    with pytest.raises(HookError, match=r"weight version 3; rollout\.max_staleness=1 allows 4 and later"):
        await producer.batch()


async def test_what_it_raises_ends_the_run_with_its_name_and_place(file: Path):
    producer = make(file, "Broken")
    with pytest.raises(HookError, match=r"rollout\.producer=.*mine\.py:Broken raised KeyError: 'no such key'(.|\n)*mine\.py"):
        await producer.batch()
    with pytest.raises(HookError, match="what JSON cannot hold"):
        await producer.state()


async def test_rollouts_that_fail_end_the_run_with_the_cause_however_often_it_tries(file: Path):
    producer = make(file, "Ahead", Workers(StopReason.GENERATE_RAISED))
    with pytest.raises(InfrastructureError, match="generate_raised: no luck"):
        await producer.batch()
    await producer.stop()


async def test_a_checkpoint_of_the_other_kind_of_producer_is_refused(file: Path):
    own, workers = make(file, "Ahead"), Workers()
    ours = Producer(RolloutConfig(), source=Source(), runner=workers, buffer=Buffer())
    with pytest.raises(CheckpointError, match="resume without it"):
        own.load(await ours.state())
    with pytest.raises(CheckpointError, match="resume with that one"):
        ours.load(await own.state())
