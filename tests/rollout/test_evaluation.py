"""An evaluation writes items as they finish, goes on after an interruption, and keeps failures in the denominator."""

import asyncio
import json
from pathlib import Path

import pytest

from vime.config import DataConfig, DatasetConfig, EvaluationConfig, RunConfig
from vime.rollout.evaluation import Evaluator, Job, read_items
from vime.types import Prompt, Rollout, StopReason

JOB = Job(dataset="numbers", row="scaffold", run=0, temperature=1.0)


class Runner:
    """Solves even items; stops the world after `limit` of them."""

    def __init__(self, limit: int = 1000) -> None:
        self.seen: list[int] = []
        self.limit = limit

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int) -> Rollout:
        await asyncio.sleep(0)
        if len(self.seen) >= self.limit:
            raise KeyboardInterrupt
        self.seen.append(prompt.index)
        failed = prompt.index == 3
        reason = StopReason.SERVER_LOST if failed else StopReason.ANSWERED
        return Rollout(rollout_id=0, group_index=0, reward=float(prompt.index % 2 == 0), stop_reason=reason)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in range(8)))
    data = DataConfig(evaluation=[DatasetConfig(name="numbers", path=str(path))])
    return RunConfig(data=data, evaluation=EvaluationConfig(max_concurrent_items=2))


def test_failures_stay_in_the_denominator(config: RunConfig, tmp_path: Path):
    evaluator = Evaluator(config, runner=Runner(), folder=tmp_path / "evaluation")
    items = asyncio.run(evaluator.run([JOB], version=0))[JOB]
    assert [item["strict"] for item in items] == [1, 0, 1, 0, 1, 0, 1, 0]
    assert items[3]["stop_reason"] == "server_lost"


def test_an_interrupted_evaluation_runs_only_what_is_missing(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "evaluation"
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Evaluator(config, runner=Runner(limit=3), folder=folder).run([JOB], version=0))
    before = read_items(folder / JOB.file_name)
    with (folder / JOB.file_name).open("a") as file:
        file.write('{"index": 7, "torn')
    second = Runner()
    items = asyncio.run(Evaluator(config, runner=second, folder=folder).run([JOB], version=0))[JOB]
    assert sorted(second.seen) == sorted(set(range(8)) - {item["index"] for item in before})
    assert [item["index"] for item in items] == list(range(8))
    assert read_items(folder / JOB.file_name)[: len(before)] == before


def test_items_of_other_weights_are_run_again(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "evaluation"
    asyncio.run(Evaluator(config, runner=Runner(), folder=folder).run([JOB], version=3))
    path = folder / JOB.file_name
    items = [{**item, "weight_versions": [3] if item["index"] < 5 else [3, 4]} for item in read_items(path)]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    same, further = Runner(), Runner()
    asyncio.run(Evaluator(config, runner=same, folder=folder).run([JOB], version=3))
    assert sorted(same.seen) == [5, 6, 7]
    path.write_text("".join(json.dumps({**item, "weight_versions": [3]}) + "\n" for item in items))
    asyncio.run(Evaluator(config, runner=further, folder=folder).run([JOB], version=4))
    assert sorted(further.seen) == list(range(8))
    assert sorted(item["index"] for item in read_items(path)) == list(range(8))
