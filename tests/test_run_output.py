"""The reports of a run: evaluations reach the tracker beside the step of their weights, with their metrics and figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime import loop
from vime.errors import ConfigError, Problem, TrainingError
from vime.evaluation.conditions import Job
from vime.preflight.compose import compose_run
from vime.report import tracker
from vime.run_output import RunOutput
from vime.types import EvalLog


class FakeEvaluator:
    """Scores of one item: the run's number, or 9 at any other temperature than the table's."""

    def num_items(self, dataset: str) -> int:
        return 1

    async def run(self, jobs: list[Job], *, version: int, on_item: Callable[[], None]) -> dict[Job, list[dict[str, Any]]]:
        return {
            job: [
                {
                    "temperature": job.temperature,
                    "strict": float(job.run) if job.temperature == 1.0 else 9.0,
                    "lenient": 0.0,
                    "failed": False,
                }
            ]
            for job in jobs
        }


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    figure = {"x": [1, 2], "series": {"recall": [0.5, 1.0]}}
    return EvalLog(metrics={"turns": float(len(results))}, figures={"recall": figure})


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, float], dict[str, Any]]]:
    """The data that the tracker gets."""
    given: list[tuple[int, dict[str, float], dict[str, Any]]] = []

    def log(
        self: Any,
        step: int,
        metrics: dict[str, float],
        *,
        figures: dict[str, Any] | None = None,
        tables: dict[str, Any] | None = None,
    ) -> None:
        given.append((step, metrics, figures or {}))

    monkeypatch.setattr(tracker.Tracker, "log", log)
    return given


async def test_evaluations_reach_the_tracker(tmp_path: Path, tracked: list[tuple[int, dict[str, float], dict[str, Any]]]):
    words = [f"output_dir={tmp_path / 'run'}", f"method.eval_log={__file__}:eval_log", "+serving.models.gpt.max_model_len=64"]
    composed = compose_run(["+method=memagent", "evaluation.num_runs=2", *words])
    composed.config.data.evaluation = composed.config.data.evaluation[:1]
    evaluator: Any = FakeEvaluator()
    with RunOutput.open(composed) as output:
        for row, version, label in [
            ("single_turn", 0, ""),
            ("scaffold", 0, ""),
            ("scaffold@gpt", 0, ""),
            ("trained", 5, "step5"),
            ("trained", 9, ""),
        ]:
            await output.evaluate(evaluator, row, version=version, label=label, num_runs=1 if label else None)
    names = ["evaluation/single_turn/docs_20", "evaluation/docs_20", "evaluation/scaffold@gpt/docs_20"]
    names += ["evaluation/docs_20", "evaluation/docs_20"]
    assert [step for step, _, _ in tracked] == [0, 0, 0, 5, 9], "an evaluation stands beside the step of its weights"
    assert [metrics[name] for name, (_, metrics, _) in zip(names, tracked)] == [50.0, 50.0, 50.0, 0.0, 50.0]
    assert tracked[1][1] == {"evaluation/docs_20": 50.0, "eval_log/docs_20/turns": 2.0}, "means over the table's runs"
    assert tracked[2][1]["eval_log/scaffold@gpt/docs_20/turns"] == 2.0 and not tracked[0][2]
    assert list(tracked[3][2]) == ["eval_log/docs_20/recall"] and tracked[3][2]["eval_log/docs_20/recall"]["x"] == [1, 2]


def test_a_configuration_that_is_refused_at_the_start_leaves_a_folder_that_can_be_used_again(tmp_path: Path):
    composed = compose_run(["+method=memagent", f"output_dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError), RunOutput.open(composed):
        raise ConfigError([Problem(key="data.train.path", value="x", remedy="a bad row")])
    with RunOutput.open(composed) as output:
        assert (output.directory.path / "config.yaml").exists()


def test_data_without_a_question_is_refused_before_there_is_a_folder(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"text": "no question"}\n')
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="row 0"):
        loop.train(compose_run(["+method=memagent", f"output_dir={folder}", f"data.train.path={tmp_path / 'bad.jsonl'}"]))
    assert not folder.exists()


@pytest.mark.parametrize("response", ["warn", "stop"])
def test_a_policy_that_is_being_lost_is_said_and_may_end_the_run(tmp_path: Path, response: str):
    composed = compose_run(["+method=memagent", f"output_dir={tmp_path / 'run'}", f"rollout.on_collapse={response}"])
    with RunOutput.open(composed) as output:
        for step in range(40):
            reward = 0.8 + 0.02 * (step % 3) if step < 30 else 0.2
            output.log_step(step, {"reward/mean": reward}, [], [])
            try:
                output.check_alarms()
            except TrainingError as error:
                assert response == "stop" and "the reward falls (rollout.on_collapse=stop)" in str(error)
                break
        else:
            assert response == "warn"
    log = (tmp_path / "run" / "logs" / "driver.log").read_text()
    assert log.count("! the reward falls") == 1, "once, however long it goes on"
    assert 31 <= step <= (39 if response == "warn" else 34)
