"""The tracker: off by default, and never the end of a run."""

import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vime.config import RunConfig, TrackerName
from vime.report.tracker import Tracker


class FakeRun:
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
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


def test_metrics_and_figures_are_in_the_file_of_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    config = make_config()
    config.logger.offline = True
    lines = {"x": [1, 2], "series": {"recall": [0.5, 1.0], "precision": [1.0, 0.5]}}
    names = {"x": ["search", "answer"], "series": {"calls per item": [1.5, 1.0]}}
    with Tracker(config, tmp_path) as tracker:
        tracker.log(4, {"train/loss": 0.5})
        tracker.log(3, {"evaluation/docs_20": 41.0}, figures={"eval_log/lines": lines, "eval_log/names": names})
        assert tracker._run is not None, "nothing has failed"
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wanted = (b"train/loss", b"evaluation/docs_20", b"eval_log/lines", b"eval_log/names")
    deadline = time.monotonic() + 60
    while missing := [name for name in wanted if name not in file.read_bytes()]:  # wandb's own process writes it
        assert time.monotonic() < deadline, missing
        time.sleep(0.05)
