"""An evaluation writes items as they finish, goes on after an interruption, and keeps failures in the denominator."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from vime.config import DataConfig, DatasetConfig, EvaluationConfig, RolloutDetail, RunConfig
from vime.errors import ConfigError
from vime.evaluation.evaluator import SHOWN, Evaluator, Job, forget_items_after, read_items
from vime.files.provenance import plain
from vime.files.record import Recorder
from vime.report.items import read_evaluation
from vime.report.summary import IncompleteRunError
from vime.types import Prompt, Rollout, Sample, StopReason

JOB = Job(dataset="numbers", row="scaffold", run=0, temperature=1.0)


class Interrupted(BaseException):
    """Ends a run, as a Ctrl-C does; one of Python's own would leave the event loop through its middle."""


class Runner:
    """Solves even items; stops the world after `limit` of them."""

    def __init__(self, limit: int = 1000) -> None:
        self.seen: list[int] = []
        self.limit = limit

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int, run: int) -> Rollout:
        await asyncio.sleep(0)
        if len(self.seen) >= self.limit:
            raise Interrupted
        self.seen.append(prompt.index)
        failed = prompt.index == 3
        reason = StopReason.SERVER_LOST if failed else StopReason.ANSWERED
        unfinished = [Sample(tokens=[1, 2], response="hal", response_length=1, loss_mask=[1])] if failed else []
        reward = float(prompt.index % 2 == 0)
        return Rollout(rollout_id=0, group_index=0, reward=reward, stop_reason=reason, unfinished=unfinished)


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


def test_the_file_keeps_the_question_and_what_is_returned_does_not_grow_with_it(config: RunConfig, tmp_path: Path):
    returned = []
    for _ in range(2):  # the second time the items come from the file
        evaluator = Evaluator(config, runner=Runner(), folder=tmp_path, recorder=Recorder(RolloutDetail.turns))
        returned.append(asyncio.run(evaluator.run([JOB], version=0))[JOB])
    assert returned[0] == returned[1] and not any(set(item) & set(SHOWN) for item in returned[0])
    items = {item["index"]: item for item in read_items(tmp_path / JOB.file_name)}
    assert {number: item["messages"][-1]["content"] for number, item in items.items()} == {n: f"q{n}" for n in range(8)}
    assert [(number, item["unfinished"][0]["response"]) for number, item in items.items() if "unfinished" in item] == [(3, "hal")]


def test_an_interrupted_evaluation_runs_only_what_is_missing(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "evaluation"
    with pytest.raises(Interrupted):
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
    same, further = Runner(), Runner()
    asyncio.run(Evaluator(config, runner=same, folder=folder).run([JOB], version=3))
    assert same.seen == []
    asyncio.run(Evaluator(config, runner=further, folder=folder).run([JOB], version=4))
    assert sorted(further.seen) == list(range(8)), "failures without tokens as well"
    assert sorted(item["index"] for item in read_items(path)) == list(range(8))


def test_items_of_weights_that_a_resumed_run_makes_anew_are_forgotten(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "evaluation"
    scaffold, at, after = (
        Job(dataset="numbers", row="scaffold", run=0, temperature=1.0),
        Job(dataset="numbers", row="trained", run=0, temperature=1.0, label="step10"),
        Job(dataset="numbers", row="trained", run=0, temperature=1.0),
    )
    for job, version in ((scaffold, 0), (at, 10), (after, 20)):
        asyncio.run(Evaluator(config, runner=Runner(), folder=folder).run([job], version=version))
    logs = [folder / f"numbers-{name}.json" for name in ("scaffold", "trained-step10", "trained")]
    for log in logs:
        log.touch()
    forget_items_after(folder, 10)
    assert [len(read_items(folder / job.file_name)) for job in (scaffold, at, after)] == [8, 8, 0]
    assert [log.exists() for log in logs] == [True, True, False]


def test_an_item_may_hold_what_json_does_not_know(config: RunConfig, tmp_path: Path):
    class Odd(Runner):
        async def run_item(self, **about: Any) -> Rollout:
            rollout = await super().run_item(**about)
            rollout.samples = [Sample(metadata={"seen": {1}, "score": np.float32(0.5)})]
            return rollout

    folder = tmp_path / "evaluation"
    asyncio.run(Evaluator(config, runner=Odd(), folder=folder).run([JOB], version=0))
    assert read_items(folder / JOB.file_name)[0]["samples"][0]["metadata"] == {"seen": "{1}", "score": 0.5}


def test_a_baseline_whose_name_has_a_hyphen_is_read_back(config: RunConfig, tmp_path: Path):
    config.evaluation.rows, config.evaluation.num_runs = ["scaffold@gpt-4o"], 1
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    job = Job(dataset="numbers", row="scaffold@gpt-4o", run=0, temperature=1.0)
    asyncio.run(Evaluator(config, runner=Runner(), folder=tmp_path / "evaluation").run([job], version=0))
    assert len(read_evaluation(tmp_path).items["numbers", "scaffold@gpt-4o"][0]) == 8


def test_an_evaluation_goes_on_only_under_the_settings_it_was_begun_with(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "evaluation"
    asyncio.run(Evaluator(config, runner=Runner(), folder=folder).run([JOB], version=0))
    config.evaluation.top_p = 0.9
    with pytest.raises(ConfigError, match=r"top_p=0.9: the items .* were scored with 1.0"):
        Evaluator(config, runner=Runner(), folder=folder)
    config.evaluation.top_p = 1.0
    Path(str(config.data.evaluation[0].path)).write_text('{"question": "another", "answer": "a"}\n' * 8)
    with pytest.raises(ConfigError, match=r"datasets\.numbers\.digest"):
        Evaluator(config, runner=Runner(), folder=folder)


def test_an_evaluation_does_not_go_on_with_other_answers_to_the_same_questions(config: RunConfig, tmp_path: Path):
    rows, folder = Path(str(config.data.evaluation[0].path)), tmp_path / "evaluation"
    for layout in ('"answer": "{}"', '"reward_model": {{"ground_truth": "{}"}}'):  # the latter is not part of the metadata
        rows.write_text(f'{{"question": "q", {layout.format("a")}}}\n' * 8)
        asyncio.run(Evaluator(config, runner=Runner(), folder=folder / layout[1:4]).run([JOB], version=0))
        rows.write_text(f'{{"question": "q", {layout.format("b")}}}\n' * 8)
        with pytest.raises(ConfigError, match=r"datasets\.numbers\.digest"):
            Evaluator(config, runner=Runner(), folder=folder / layout[1:4])


def items_by_file(folder: Path) -> dict[str, list[str]]:
    """The whole lines of every file of items."""
    return {path.name: path.read_text().split("\n")[:-1] for path in sorted(folder.glob("*.jsonl"))}


@pytest.mark.slow
def test_an_evaluation_killed_at_ten_random_items_ends_with_every_item_once(tmp_path: Path):
    rows, run = tmp_path / "rows.jsonl", tmp_path / "run"
    rows.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in range(11)))
    program = [sys.executable, str(Path(__file__).with_name("evaluation_process.py")), str(run), str(rows)]
    chance, before, refused = random.Random(1), {}, set()
    for start in range(10):
        ended = subprocess.run([*program, str(chance.randint(1, 6)), str(start)], capture_output=True, text=True, timeout=120)
        assert ended.returncode == -9, ended.stderr
        with pytest.raises(IncompleteRunError, match="is incomplete") as error:
            read_evaluation(run)
        refused.add(str(error.value).removeprefix(f"{run}: "))
        after = items_by_file(run / "evaluation")
        assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "finished items changed"
        before = after
    assert any("short, single_turn, run 0 is incomplete" in text for text in refused), refused
    ended = subprocess.run([*program, "-1", "99"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    after = items_by_file(run / "evaluation")
    assert all(after[name][: len(lines)] == lines for name, lines in before.items())
    evaluation = read_evaluation(run)
    for (dataset, _), runs in evaluation.items.items():
        for items in runs:
            assert [item["index"] for item in items] == list(range({"short": 7, "long": 11}[dataset]))
    assert {row for _, row in evaluation.items} == {"single_turn", "scaffold"}
    failed = [item for runs in evaluation.items.values() for items in runs for item in items if item["failed"]]
    assert failed and all(item["strict"] == 0 for item in failed), "failures are items that score 0"
    assert sum(score.num_failed for score in evaluation.scores()) == len(failed)


def test_an_item_that_stands_twice_is_refused_by_name(tmp_path: Path):
    rows, run = tmp_path / "rows.jsonl", tmp_path / "run"
    rows.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in range(11)))
    program = [sys.executable, str(Path(__file__).with_name("evaluation_process.py")), str(run), str(rows), "-1", "0"]
    subprocess.run(program, check=True, timeout=120)
    path = run / "evaluation" / "long-scaffold-t1-run1.jsonl"
    path.write_text(path.read_text() + path.read_text().split("\n")[0] + "\n")
    with pytest.raises(IncompleteRunError, match=r"long, scaffold, run 1 holds items .* more than once"):
        read_evaluation(run)
