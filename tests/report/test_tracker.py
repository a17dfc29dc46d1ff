"""The tracker: off by default, and never the end of a run."""

import json
import logging
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vime.config import RolloutDetail, RunConfig, TrackerName
from vime.evaluation.conditions import Job
from vime.files.record import Recorder
from vime.report.metric_units import unit_of
from vime.report.tracked_run import kept_id
from vime.report.tracker import Tracker
from vime.types import Group, Prompt, Rollout, Sample, StopReason

PROMPT = Prompt(index=0, row=3, messages=[{"role": "user", "content": "2+2?"}], ground_truth=["4"])


class FakeRun:
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.exit_code: int | None = None
        self.config: dict[str, Any] = {}

    def define_metric(self, name: str, step_metric: str | None = None, summary: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, metrics: dict[str, float]) -> None:
        if metrics.get("broken"):
            raise ConnectionError("no network")
        self.rows.append(metrics)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(run=FakeRun(), given={}, Settings=lambda **settings: settings)

    def init(**given: Any) -> FakeRun:
        fake.given.update(given)
        return fake.run

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def make_config() -> RunConfig:
    config = RunConfig(name="demo")
    config.logger.tracker = TrackerName.wandb
    config.serving.models["actor"].vllm_args = {"api-key": "not for the tracker"}
    return config


def test_no_tracker_does_nothing(tmp_path: Path) -> None:
    with Tracker(RunConfig(), tmp_path) as tracker:
        tracker.log(1, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_metrics_reach_the_tracker_and_secrets_do_not(tmp_path: Path, wandb: SimpleNamespace) -> None:
    with Tracker(make_config(), tmp_path) as tracker:
        tracker.log(3, {"a": 1})
        tracker.log(2, {"b": 1})
    assert wandb.run.rows == [{"a": 1.0, "step": 3}, {"b": 1.0, "step": 2}] and wandb.run.exit_code == 0
    assert ("*", "step") in wandb.run.axes, "wandb's own step would drop what comes late"
    assert wandb.given["mode"] == "offline", "there is no key in the environment"
    assert "not for the tracker" not in str(wandb.given)


def test_a_key_in_the_environment_tracks_online(tmp_path: Path, wandb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with Tracker(make_config(), tmp_path):
        pass
    assert wandb.given["mode"] == "online" and "0" * 40 not in str(wandb.given)


def test_a_tracker_that_fails_is_given_up_with_one_warning(
    tmp_path: Path, wandb: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Tracker(make_config(), tmp_path) as tracker:
        tracker.log(1, {"broken": 1.0})
        tracker.log(2, {"broken": 1.0})
        tracker.log(3, {"a": 1.0})
    assert [record.message for record in caplog.records if "switched off" in record.message] == [
        "wandb failed and is switched off for this run: ConnectionError: no network"
    ]
    assert wandb.run.rows == []


def test_a_tracker_that_does_not_start_leaves_the_run_alone(
    tmp_path: Path, wandb: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**given: Any) -> FakeRun:
        raise RuntimeError("service is down")

    wandb.init = init
    with caplog.at_level(logging.WARNING), Tracker(make_config(), tmp_path) as tracker:
        tracker.log(1, {"a": 1.0})
    assert "service is down" in caplog.text


def records(file: Path) -> list[Any]:
    """The messages in the file of an offline run, as wandb's own protocol defines them.

    The file is a log of LevelDB: after 7 bytes, blocks of 32 KiB with pieces of checksum, length and kind (1 whole, 2 first,
    3 middle, 4 last); what does not fit into a block goes on in the next.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    data, place, found, message = file.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        message += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(message))
            message = b""
    return found


def history(found: list[Any]) -> list[dict[str, Any]]:
    """The logged values, by name."""
    lines = [record.history.item for record in found if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items} for items in lines]


def track_offline(path: Path) -> list[Any]:
    """A start of a run that is tracked offline, and what its file holds."""
    config = make_config()
    config.logger.group = "sweep_1"
    lines = {"x": [1, 2], "series": {"recall": [0.5, 1.0], "precision": [1.0, 0.5]}}
    names = {"x": ["search", "answer"], "series": {"calls per item": [1.5, 1.0]}}
    reply = Sample(response="in a box", tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[0.0])
    rollout = Rollout(rollout_id=0, group_index=0, samples=[reply], reward=1.0, stop_reason=StopReason.ANSWERED)
    group = Group(prompt=PROMPT, rollouts=[rollout])
    item = {"dataset": "docs_20", "index": 0, "strict": 0.5, "stop_reason": "answered", "error": "", "samples": []}
    before = set(path.glob("wandb/offline-run-*/*.wandb"))
    job = Job(dataset="docs_20", row="trained", run=0, temperature=config.evaluation.temperature)
    with Tracker(config, path) as tracker:
        tracker.step(4, {"train/loss": 0.5, "time/step_seconds": 2.0}, [group], Recorder(RolloutDetail.turns))
        figures = {"eval_log/docs_20/lines": lines, "eval_log/docs_20/names": names}
        logs = {"eval_log/docs_20/turns": 2.0}
        tracker.evaluation("trained", 3, {job: [item]}, {"docs_20": [PROMPT]}, logs=logs, figures=figures)
        assert tracker._writer is not None, "nothing has failed"
    (file,) = set(path.glob("wandb/offline-run-*/*.wandb")) - before
    deadline = time.monotonic() + 60
    found = records(file)
    while not any(record.HasField("exit") for record in found):  # wandb's own process writes it
        assert time.monotonic() < deadline, f"{len(found)} records"
        time.sleep(0.05)
        found = records(file)
    return found


def test_an_offline_run_holds_metrics_evaluations_tables_groups_and_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = track_offline(tmp_path)
    run = next(record.run for record in found if record.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert run.run_group == "sweep_1" and run.job_type == "train" and config["name"] == "demo"
    assert "not for the tracker" not in str(run)
    defined = {(r.metric.name or r.metric.glob_name, r.metric.step_metric) for r in found if r.HasField("metric")}
    assert {("*", "step"), ("reward/*", "step")} <= defined
    step, evaluation = history(found)
    assert (step["step"], step["train/loss"]) == (4, 0.5) and (evaluation["step"], evaluation["evaluation/docs_20"]) == (3, 50.0)
    assert evaluation["eval_log/docs_20/turns"] == 2.0 and evaluation["eval_log/docs_20/names/_type"] == "table-file"
    units = [json.loads(item.value_json) for r in found if r.HasField("config") for item in r.config.update]
    assert {"time/step_seconds": "s", "evaluation/docs_20": "%"} in units
    table = next(tmp_path.glob(f"wandb/offline-run-*/files/{step['conversations/training/path']}"))
    assert "in a box" in table.read_text() and "2+2?" in table.read_text() and "conversations/docs_20/path" in evaluation


def test_a_resumed_run_keeps_its_id_and_another_run_of_that_name_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    made, ids = iter("abc"), []
    for folder in ("sweep_1/0", "sweep_1/0", "sweep_2/0"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        ids.append(kept_id(tmp_path / folder, "wandb", lambda: next(made)))
    assert ids == ["a", "a", "b"] and kept_id(tmp_path / "sweep_1" / "0", "mlflow", lambda: next(made)) == "c"
    (tmp_path / "run").mkdir()
    starts = [track_offline(tmp_path / "run") for _ in range(2)]
    kept = kept_id(tmp_path / "run", "wandb", lambda: "none")
    assert {record.run.run_id for start in starts for record in start if record.HasField("run")} == {kept}


def test_tensorboard_reads_its_files_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make_config()
    config.logger.tracker = TrackerName.tensorboard
    rollout = Rollout(rollout_id=0, group_index=0, reward=1.0, stop_reason=StopReason.ANSWERED, error="<b>|")
    figure = {"x": [1, 2], "series": {"recall": [0.5, 1.0]}}
    with Tracker(config, tmp_path) as tracker:
        tracker.step(4, {"train/loss": 0.5}, [Group(prompt=PROMPT, rollouts=[rollout])], Recorder(RolloutDetail.turns))
        tracker.log(3, {"evaluation/docs_20": 50.0}, figures={"eval_log/docs_20/recall": figure})
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [(4, 0.5)]
    assert [(event.step, event.value) for event in found.Scalars("evaluation/docs_20")] == [(3, 50.0)]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert "2+2?" in texts["conversations/training/text_summary"]
    assert "&lt;b>&#124;" in texts["conversations/training/text_summary"]
    assert "| 2 | 1 |" in texts["eval_log/docs_20/recall/text_summary"]
    assert "not for the tracker" not in texts["configuration/text_summary"]


def track_twice(tmp_path: Path, tracker: TrackerName) -> None:
    """One step with a conversation, an evaluation of an earlier step with a figure, and a later step after a resume."""
    config = make_config()
    config.logger.tracker = tracker
    rollout = Rollout(rollout_id=0, group_index=0, reward=1.0, stop_reason=StopReason.ANSWERED, error="<b>|")
    figure = {"x": [1, 2], "series": {"recall": [0.5, 1.0]}}
    (tmp_path / "run").mkdir()
    with Tracker(config, tmp_path / "run") as tracking:
        tracking.step(4, {"train/loss": 0.5}, [Group(prompt=PROMPT, rollouts=[rollout])], Recorder(RolloutDetail.turns))
        tracking.log(3, {"evaluation/docs_20": 50.0}, figures={"eval_log/docs_20/recall": figure})
    with Tracker(config, tmp_path / "run") as tracking:
        tracking.log(5, {"train/loss": 0.25})


def test_mlflow_reads_its_run_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'vime[loggers]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    track_twice(tmp_path, TrackerName.mlflow)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("vime").experiment_id])
    assert (run.info.run_name, run.info.status) == ("demo/run", "FINISHED")
    found = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/loss")]
    assert found == [(4, 0.5), (5, 0.25)] and run.data.metrics["evaluation/docs_20"] == 50.0
    files = [file.read_text() for file in (tmp_path / "mlruns").rglob("*.json")]
    files += [file.read_text() for file in (tmp_path / "mlruns").rglob("*.yaml")]
    assert any("2+2?" in text for text in files) and any("recall" in text for text in files)
    assert not any("not for the tracker" in text for text in files)


def test_trackio_reads_its_run_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "database"))
    trackio = pytest.importorskip("trackio", reason="pip install 'vime[loggers]'")
    track_twice(tmp_path, TrackerName.trackio)
    assert "trackio show" not in capfd.readouterr().out
    (run,) = trackio.Api().runs("vime")
    assert "demo/run" in str(run) and "not for the tracker" not in str(run.config)
    with closing(sqlite3.connect(tmp_path / "database" / "vime.db")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    assert [step for step, _ in rows] == [3, 4, 5] and "2+2?" in str(rows) and "0.25" in str(rows[-1])


def test_every_metric_of_a_step_has_the_unit_that_its_name_says() -> None:
    wanted = {"time/step_seconds": "s", "train/tokens_per_second": "tokens/s", "sync/bytes": "bytes", "reward/mean": ""}
    wanted |= {"utilization/trainer": "share, 0 to 1", "serving/actor/latency_seconds": "s", "seconds/tool": "s"}
    wanted |= {"rollout/num_failed": "rollouts", "evaluation/docs_20": "%", "count/tool_calls": "per batch"}
    assert {name: unit_of(name) for name in wanted} == wanted
