"""Models of a service as runs: what the viewer finds, before and after a restart."""

from pathlib import Path

from vime.config import LoraTarget, RunConfig
from vime.report.metrics_file import read_metrics
from vime.report.run_directory import METRICS, read_config
from vime.service.model_runs import RUNS, ModelRuns, run_name
from vime.view.progress import progress
from vime.view.runs import Runs

MODEL = "3f2a:train:0"


def opened(folder: Path) -> ModelRuns:
    runs = ModelRuns(RunConfig(name="service"), folder)
    runs.begin(MODEL, seed=7, rank=8, targets=[LoraTarget.q_proj])
    return runs


def test_a_model_is_a_run_that_is_found_from_every_folder_above_it(tmp_path: Path):
    folder = tmp_path / "service" / "today"
    opened(folder).note(MODEL, 1, {"train/loss": 0.5, "time/step_seconds": 1.0})
    for above, name in ((tmp_path, "service/today"), (folder.parent, "today"), (folder, "service/today")):
        found = Runs([above])
        assert {run.name for run in found.all()} == {name, f"{name}/{RUNS}/{run_name(MODEL)}"}
        run = found.get(f"{name}/{RUNS}/{run_name(MODEL)}")
        assert run.state() == "running" and progress(run).step == 1
    config = read_config(folder / RUNS / run_name(MODEL))
    assert (config["trainer"]["lora"]["rank"], config["trainer"]["lora"]["targets"], config["seed"]) == (8, ["q_proj"], 7)


def test_steps_that_are_repeated_after_a_restart_stand_there_once(tmp_path: Path):
    runs = opened(tmp_path)
    for step in (1, 2, 3):
        runs.note(MODEL, step, {"train/loss": step})
    again = opened(tmp_path)
    for step in (2, 3, 4):
        again.note(MODEL, step, {"train/loss": 10 * step})
    rows = read_metrics(tmp_path / RUNS / run_name(MODEL) / METRICS)
    assert [(row["step"], row["train/loss"]) for row in rows] == [(1, 1), (2, 20), (3, 30), (4, 40)]


def test_a_model_that_was_ended_is_no_longer_running_and_may_come_back(tmp_path: Path):
    runs = opened(tmp_path)
    run = next(run for run in Runs([tmp_path]).all() if RUNS in run.name)
    runs.end(MODEL, step=3)
    ending = run.ending()
    assert run.state() == "interrupted" and ending is not None and "its client" in ending.text
    opened(tmp_path)
    assert run.state() == "running"


def test_the_status_is_written_when_it_changes(tmp_path: Path):
    runs = opened(tmp_path)
    (run,) = [run for run in Runs([tmp_path]).all() if RUNS not in run.name]
    before = run.fingerprint()
    runs.write_status({"models": []})
    written = run.fingerprint()
    runs.write_status({"models": []})
    assert before != written == run.fingerprint()
