"""Pools of rows: how often each comes, what a restart keeps, and the shares that a step shows."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from vime.config import CurriculumConfig, DataConfig, DatasetConfig, RunConfig
from vime.data.curriculum import Curriculum
from vime.data.source import RowSource
from vime.errors import ConfigError
from vime.orchestration.buffer import Buffer
from vime.orchestration.producer import Producer
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems
from vime.types import Group, Prompt, Rollout, Sample, StopReason

NUM_ROWS, NUM_EPOCHS = 40, 50


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"a{i}"}) + "\n" for i in range(NUM_ROWS)))
    limits = CurriculumConfig(solved_rate=0.2, hopeless_rate=0.5)
    return RunConfig(data=DataConfig(train=DatasetConfig(path=str(path)), curriculum=limits))


def group_of(prompt: Prompt, *rewards: float) -> Group:
    sample = Sample(tokens=[1, 2], loss_mask=[1], response_length=1, rollout_log_probs=[-0.5])
    rollouts = [
        Rollout(rollout_id=n, group_index=prompt.index, samples=[sample], reward=reward, stop_reason=StopReason.ANSWERED)
        for n, reward in enumerate(rewards)
    ]
    return Group(prompt=prompt, rollouts=rollouts)


def played(source: Curriculum, number: int) -> list[Prompt]:
    """Prompts, each answered at once: rows below 10 are solved, those from 30 on hopeless, the others half solved."""
    prompts = []
    for _ in range(number):
        prompt = source.next()
        source.seen(group_of(prompt, float(prompt.row < 30), float(prompt.row < 10)))
        prompts.append(prompt)
    return prompts


def test_all_rows_come_in_the_first_epoch_and_then_those_of_a_pool_at_its_rate(config: RunConfig):
    source = Curriculum(config)
    first = played(source, NUM_ROWS)
    assert sorted(prompt.row for prompt in first) == list(range(NUM_ROWS))
    expected = {"data/unseen_share": 0.0, "data/in_play_share": 0.5, "data/solved_share": 0.25, "data/hopeless_share": 0.25}
    assert source.metrics() == expected
    each_epoch = 20 + 10 * 0.2 + 10 * 0.5
    counts = Counter(prompt.row for prompt in played(source, round(NUM_EPOCHS * each_epoch)))
    shares = [sum(counts[row] for row in rows) / len(rows) / NUM_EPOCHS for rows in (range(10), range(10, 30), range(30, 40))]
    assert shares == pytest.approx([0.2, 1.0, 0.5], abs=0.08)


def test_a_row_that_is_no_longer_solved_is_in_play_again(config: RunConfig):
    source = Curriculum(config)
    prompt = source.next()
    for rewards, share in (((1.0, 1.0), "solved"), ((1.0, 0.0), "in_play"), ((0.0, 0.0), "hopeless")):
        source.seen(group_of(prompt, *rewards))
        assert source.metrics()[f"data/{share}_share"] == 1 / NUM_ROWS
        assert sum(source.metrics().values()) == pytest.approx(1.0)


def test_where_no_row_is_due_one_comes_nevertheless(config: RunConfig):
    limits = CurriculumConfig(solved_rate=0.0, hopeless_rate=0.0)
    source = Curriculum(replace(config, data=replace(config.data, curriculum=limits)))
    for _ in range(3 * NUM_ROWS):
        source.seen(group_of(source.next(), 1.0))
    assert source.metrics()["data/solved_share"] == 1.0


def test_a_restart_goes_on_with_the_same_prompts_and_pools(config: RunConfig):
    whole, first, second = Curriculum(config), Curriculum(config), Curriculum(config)
    expected = played(whole, 150)
    seen = played(first, 70)
    second.load(json.loads(json.dumps(first.state())))
    assert seen + played(second, 80) == expected and second.metrics() == whole.metrics()


def test_a_run_that_had_no_pools_goes_on_with_some(config: RunConfig):
    plain, source = RowSource(config), Curriculum(config)
    for _ in range(7):
        plain.next()
    source.load(json.loads(json.dumps(plain.state())))
    assert source.next() == plain.next()


async def test_groups_that_the_filter_leaves_out_are_seen_too(config: RunConfig):
    class AllSolved:
        async def run_group(self, *, prompt: Prompt, **_: object) -> Group:
            return group_of(prompt, 1.0, float(prompt.row % 2))

    source = Curriculum(config)
    rollout = replace(config.rollout, num_prompts=4, num_samples_per_prompt=2, max_staleness=0)
    keep = lambda _, group: group.rollouts[1].reward == 0.0  # noqa: E731
    runner: object = AllSolved()
    producer = Producer(rollout, source=source, runner=runner, buffer=Buffer(), keep=keep)  # type: ignore[arg-type]
    producer.set_version(0)
    groups, _ = await producer.batch()
    await producer.stop()
    assert {group.prompt.row % 2 for group in groups} == {0}
    assert source.metrics()["data/solved_share"] > 0 and source.metrics()["data/in_play_share"] == 4 / NUM_ROWS


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["data.curriculum.solved_rate=0.5"], r"data\.curriculum\.solved_rate=0\.5.*has no pools: use data\.source="),
        (["data.source=vime.data.curriculum.Curriculum", "data.curriculum.hopeless_at=1"], r"hopeless_at=1.*use less than"),
        (
            ["data.source=vime.data.curriculum.Curriculum", "deterministic=true", "rollout.max_staleness=1"],
            r"data\.source=.*which group finishes first",
        ),
    ],
)
def test_settings_without_an_effect_or_with_a_wrong_one_are_refused(words: list[str], refusal: str):
    problems = find_problems(compose_run(["+method=memagent", *words]).config)
    assert any(re.search(refusal, str(ConfigError([problem]))) for problem in problems)
