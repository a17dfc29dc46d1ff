"""The folder of a run: provenance, no secrets, resume, rollouts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from vime.config import AlgorithmName, RolloutDetail, RunConfig
from vime.errors import ConfigError
from vime.files import provenance
from vime.files.record import Recorder
from vime.model.pieces import TokenPieces
from vime.report import run_directory
from vime.report.run_directory import RunDirectory, held, read_config
from vime.types import COLUMNS, Column, EvalLog, Group, Prompt, Rollout, Sample, StopReason


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "describe_machine", lambda: {"num_cores": 2})


def make_config(path: Path, **values: object) -> RunConfig:
    return RunConfig(output_dir=str(path), **values)  # type: ignore[arg-type]


def test_a_new_run_writes_where_it_comes_from(tmp_path: Path) -> None:
    config = make_config(tmp_path / "outputs" / "demo" / "now", seed=3)
    config.algorithm.name = AlgorithmName.sft
    directory = RunDirectory.create(config, ["seed=3", "+method=memagent"])
    written = read_config(directory.path)
    assert written["seed"] == 3 and written["algorithm"]["name"] == "sft"
    assert written["serving"]["models"]["actor"]["trained"] is True
    assert yaml.safe_load((directory.path / "overrides.yaml").read_text()) == ["seed=3", "+method=memagent"]
    versions = json.loads((directory.path / "versions.json").read_text())
    assert versions["torch"] and "megatron-core" in versions
    assert (directory.path / "commit.txt").read_text() and (directory.path / "code.diff").exists()
    assert json.loads((directory.path / "machine.json").read_text()) == {"num_cores": 2}
    assert all(folder.is_dir() for folder in (directory.logs, directory.rollouts, directory.checkpoints, directory.evaluation))


def test_latest_is_a_relative_link_to_the_run_started_last(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    for name in ("first", "sweep_1/0"):
        RunDirectory.create(make_config(outputs / "demo" / name), [])
    assert (outputs / "latest").readlink() == Path("demo/sweep_1/0")
    assert sorted(path.name for path in outputs.iterdir()) == ["demo", "latest"]


def test_a_folder_named_latest_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "outputs" / "latest").mkdir(parents=True)
    directory = RunDirectory.create(make_config(tmp_path / "outputs" / "demo" / "now"), [])
    assert (directory.path / "config.yaml").exists()
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["demo", "latest"]


def test_secrets_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_API_KEY", "value-from-environment")
    config = make_config(tmp_path / "run")
    actor = config.serving.models["actor"]
    actor.vllm_args = {"api-key": "key-in-arguments", "hf_token": "token-in-arguments", "max_num_batched_tokens": 512}
    actor.urls = ["http://name:login-in-address@10.0.0.1:8000/v1"]
    config.serving.router_args = {"header": "Bearer value-from-environment"}
    overrides = ["serving.models.actor.vllm_args.api-key=key-in-arguments", "x=value-from-environment"]
    directory = RunDirectory.create(config, overrides)
    text = "".join(path.read_text() for path in directory.path.iterdir() if path.is_file())
    for secret in ("value-from-environment", "key-in-arguments", "token-in-arguments", "login-in-address"):
        assert secret not in text
    written = read_config(directory.path)["serving"]["models"]["actor"]
    assert written["vllm_args"]["max_num_batched_tokens"] == 512 and "10.0.0.1:8000" in written["urls"][0]
    assert actor.vllm_args["api-key"] == "key-in-arguments", "the run itself keeps its secret"


def test_a_run_starts_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "CODE", tmp_path)
    directory = RunDirectory.create(make_config(tmp_path / "run"), [])
    assert "no git commit" in (directory.path / "commit.txt").read_text()
    assert (directory.path / "code.diff").read_text() == ""


def test_commit_and_changes_are_those_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.setattr(provenance, "CODE", code)
    monkeypatch.setenv("SOME_TOKEN", "secret-in-the-diff")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(code), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init")
    (code / "module.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    (code / "module.py").write_text("a = 2  # secret-in-the-diff\n")
    assert provenance.commit().startswith(git("rev-parse", "HEAD"))
    assert "module.py" in provenance.commit()
    assert "+a = 2" in provenance.code_diff() and "secret-in-the-diff" not in provenance.code_diff()


def test_a_folder_that_holds_a_run_is_refused_without_resume(tmp_path: Path) -> None:
    RunDirectory.create(make_config(tmp_path / "run"), [])
    with pytest.raises(ConfigError, match="resume=true"):
        RunDirectory.create(make_config(tmp_path / "run"), [])


def test_a_resumed_run_keeps_what_its_earlier_start_was_given(tmp_path: Path) -> None:
    RunDirectory.create(make_config(tmp_path / "run", seed=1), ["seed=1"])
    directory = RunDirectory.create(make_config(tmp_path / "run", seed=1, resume=True), ["seed=1", "resume=true"])
    assert yaml.safe_load((directory.path / "earlier" / "1" / "overrides.yaml").read_text()) == ["seed=1"]
    assert read_config(directory.path)["resume"] is True


def test_rollouts_keep_text_reward_and_stop_reason_and_tokens_only_on_request(tmp_path: Path) -> None:
    directory = RunDirectory.create(make_config(tmp_path / "run"), [])
    sample = Sample(
        tokens=[1, 2, 3],
        response="four",
        response_length=2,
        loss_mask=[1, 1],
        rollout_log_probs=[-0.1, -0.2],
        weight_versions=[0, 0],
    )
    prompt = Prompt(index=0, row=7, messages=[{"role": "user", "content": "2+2?"}], ground_truth=["4"])
    rollout = Rollout(rollout_id=5, group_index=0, samples=[sample], reward=1.0, stop_reason=StopReason.ANSWERED)
    group = Group(prompt=prompt, rollouts=[rollout])
    path = directory.write_rollouts(12, [group])
    assert path.name == "step_000012.jsonl"
    (row,) = directory.read_rollouts(12)
    assert (row["reward"], row["stop_reason"], row["rollout_id"]) == (1.0, "answered", 5)
    assert row["messages"][0]["content"] == "2+2?"
    assert row["samples"][0]["response"] == "four" and "tokens" not in row["samples"][0]
    pieces = TokenPieces([b"", b"2+2? ", b"fo", b"ur"])
    directory.write_rollouts(12, [group], recorder=Recorder(RolloutDetail.turns, pieces.text))
    (turned,) = directory.read_rollouts(12)[0]["samples"]
    assert [(turn["kind"], turn["text"]) for turn in turned["turns"]] == [("prompt", "2+2? "), ("reply", "four")]
    assert "tokens" not in turned
    directory.write_rollouts(12, [group], recorder=Recorder(RolloutDetail.tokens, pieces.text), advantages={5: [0.5]})
    (kept,) = directory.read_rollouts(12)[0]["samples"]
    assert "trainer_log_probs" not in kept
    columns = {name: Column.from_text(kept[name], dtype) for name, dtype in COLUMNS.items() if isinstance(kept[name], str)}
    assert columns["tokens"] == [1, 2, 3] and columns["loss_mask"] == [1, 1] and kept["weight_versions"] == 0
    assert columns["rollout_log_probs"] == pytest.approx([-0.1, -0.2]) and kept["advantage"] == 0.5
    known = {id(sample.tokens): np.array([-0.3, -0.4], dtype=np.float32)}
    directory.write_rollouts(12, [group], recorder=Recorder(RolloutDetail.tokens, pieces.text), logprobs=known)
    (kept,) = directory.read_rollouts(12)[0]["samples"]
    assert Column.from_text(kept["trainer_log_probs"], np.float32) == pytest.approx([-0.3, -0.4])
    assert directory.read_rollouts(13) == []


def test_eval_logs_are_written_as_json(tmp_path: Path) -> None:
    directory = RunDirectory.create(make_config(tmp_path / "run"), [])
    path = directory.write_eval_log("docs-trained", EvalLog(metrics={"turns": 2.0}))
    assert json.loads(path.read_text()) == {"metrics": {"turns": 2.0}, "figures": {}}


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_config(tmp_path)


def test_a_folder_that_another_run_writes_into_is_refused_by_its_process_and_freed_by_its_end(tmp_path: Path) -> None:
    code = "import pathlib, sys, time\nfrom vime.report.run_directory import held\n"
    code += "with held(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {process.pid} of .* is writing there"), held(tmp_path / "run"):
            pass
        process.kill()
    with held(tmp_path / "run"):
        assert str(os.getpid()) in (tmp_path / "run" / ".lock").read_text()
