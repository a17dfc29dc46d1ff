"""Prompts come once each and in the same order after a restart; the buffer hands out the oldest slots."""

import asyncio
import json

import pytest

from vime.config import DataConfig, DatasetConfig, RunConfig
from vime.data.buffer import Buffer
from vime.data.rows import load_rows, to_prompt
from vime.data.source import RowSource
from vime.errors import ConfigError
from vime.types import Group, Prompt


@pytest.fixture
def config(tmp_path) -> RunConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"a{i}"}) + "\n" for i in range(5)))
    return RunConfig(data=DataConfig(train=DatasetConfig(path=str(path))))


def make_prompt(index: int) -> Prompt:
    return Prompt(index=index, row=index, messages=[{"role": "user", "content": "?"}], ground_truth=["a"])


def test_every_row_comes_once_an_epoch_in_another_order(config: RunConfig):
    source = RowSource(config)
    epochs = [[source.next().row for _ in range(5)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(5))
    assert epochs[0] != epochs[1]


def test_a_restored_source_goes_on_where_it_was_across_epochs(config: RunConfig):
    whole, first = RowSource(config), RowSource(config)
    expected = [whole.next() for _ in range(13)]
    seen = [first.next() for _ in range(7)]
    second = RowSource(config)
    second.load(json.loads(json.dumps(first.state())))
    assert seen + [second.next() for _ in range(6)] == expected


def test_rows_of_the_public_sets_become_prompts():
    hotpot = {"prompt": [{"role": "user", "content": "Q"}], "context": "C", "reward_model": {"ground_truth": ["x", "y"]}}
    prompt = to_prompt(hotpot, index=3, row_number=1, dataset="train")
    assert (prompt.messages[-1]["content"], prompt.ground_truth, prompt.metadata) == ("Q", ["x", "y"], {"context": "C"})
    ruler = {"input": "Q", "answers": ["x"], "context": "C", "index": 0, "num_docs": 50}
    assert to_prompt(ruler, index=0, row_number=0, dataset="d").ground_truth == ["x"]


def test_a_row_without_a_question_is_named(config: RunConfig):
    with pytest.raises(ConfigError, match="row 4 has none of the fields"):
        to_prompt({"text": "?"}, index=0, row_number=4, dataset="train")


def test_num_items_limits_the_rows(config: RunConfig):
    config.data.train.num_items = 2
    assert len(load_rows(config.data.train)) == 2


def test_the_buffer_waits_for_the_oldest_slots():
    async def scenario() -> None:
        buffer = Buffer()
        slots = [buffer.admit(make_prompt(i)) for i in range(3)]
        buffer.finish(slots[1], Group(prompt=make_prompt(1)))
        buffer.finish(slots[2], Group(prompt=make_prompt(2)))
        waiting = asyncio.create_task(buffer.take(2))
        await asyncio.sleep(0)
        assert not waiting.done()
        buffer.finish(slots[0], Group(prompt=make_prompt(0)))
        assert [group.prompt.index for group in await waiting] == [0, 1]
        assert buffer.num_finished == 1

    asyncio.run(scenario())


def test_a_restored_buffer_has_the_same_groups_and_unfinished_prompts():
    buffer = Buffer()
    slots = [buffer.admit(make_prompt(i)) for i in range(2)]
    buffer.finish(slots[1], Group(prompt=make_prompt(1), weight_version=4))
    restored = Buffer()
    restored.load(json.loads(json.dumps(buffer.state())))
    assert restored.unfinished() == {0: make_prompt(0)}
    assert restored.state() == buffer.state()
    assert restored.admit(make_prompt(9)) == 2
