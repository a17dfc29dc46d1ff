"""Exact checkpoints: bitwise state, equal continuation, and errors instead of half a checkpoint."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import Precision, RunConfig
from vime.errors import CheckpointError
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]


def state(engine: Any) -> list[torch.Tensor]:
    """Weights, and everything the optimizer holds, in a fixed order."""
    from vime.trainer import optimizer_state

    tensors = [parameter.detach().clone() for parameter in engine.model.parameters()]
    for part in optimizer_state.parts(engine.optimizer):
        tensors += [part.tensors[kind].clone() for kind in optimizer_state.KINDS]
    return [*tensors, torch.tensor(optimizer_state.num_steps(engine.optimizer))]


@pytest.mark.parametrize("precision", list(Precision))
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    tmp_path: Path,
    precision: Precision,
) -> None:
    config = make_config(models("qwen3"), precision=precision, weight_decay=0.1)
    whole = engine(config)
    for step in range(2):
        whole.train([make_samples(6, seed=step)], step)
    whole.save(tmp_path / "saved")
    saved, drawn = state(whole), (random.random(), torch.rand(3))
    resumed = engine(config)
    resumed.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(saved, state(resumed), strict=True))
    assert random.random() == drawn[0] and torch.equal(torch.rand(3), drawn[1])
    for step in range(2, 4):
        expected, found = (e.train([make_samples(6, seed=step)], step) for e in (whole, resumed))
        assert found["train/loss"] == expected["train/loss"] and found["train/grad_norm"] == expected["train/grad_norm"]
    assert all(torch.equal(a, b) for a, b in zip(state(whole), state(resumed), strict=True))


def test_loading_into_a_fresh_engine_needs_no_step_before(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, tmp_path: Path
) -> None:
    first = engine(make_config(models("qwen2")))
    first.save(tmp_path / "untrained")
    other = engine(make_config(models("qwen2")))
    other.train([make_samples(4)], 0)
    other.load(tmp_path / "untrained")
    a, b = (e.train([make_samples(4)], 0)["train/grad_norm"] for e in (first, other))
    assert a == b and all(torch.equal(x, y) for x, y in zip(state(first), state(other), strict=True))


def break_file(path: Path, how: str) -> None:
    """Deletes a file, cuts its end off, or flips one bit in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if how != "missing":
        path.write_bytes(data if how == "flipped" else data[:-7])


@pytest.mark.parametrize(("how", "said"), [("missing", "is missing"), ("cut", "bytes instead of"), ("flipped", "is damaged")])
def test_a_broken_file_is_named_before_anything_is_loaded(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    tmp_path: Path,
    how: str,
    said: str,
) -> None:
    trained = engine(make_config(models("qwen2")))
    trained.save(tmp_path / "saved")
    trained.train([make_samples(4)], 0)
    before = state(trained)
    files = json.loads((tmp_path / "saved" / "manifest.json").read_text())["files"]
    assert set(files) == {"__0_0.distcp", ".metadata", "common.pt", "metadata.json"}
    for name in files:
        whole = (tmp_path / "saved" / name).read_bytes()
        break_file(tmp_path / "saved" / name, how)
        with pytest.raises(CheckpointError, match=rf"{name} .*{said}.*move this checkpoint away"):
            trained.load(tmp_path / "saved")
        (tmp_path / "saved" / name).write_bytes(whole)
    break_file(tmp_path / "saved" / "manifest.json", "missing" if how == "missing" else "cut")
    with pytest.raises(CheckpointError, match="not a complete trainer checkpoint"):
        trained.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(before, state(trained), strict=True))


def test_a_checkpoint_of_another_model_is_refused_by_field(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    engine(make_config(models("qwen2"))).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"family is qwen2 there and llama here.* rope_scaling is {} there"):
        engine(make_config(models("llama"))).load(tmp_path / "saved")


def test_a_checkpoint_of_another_precision_is_refused(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    engine(make_config(models("qwen2"))).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="precision"):
        engine(make_config(models("qwen2"), precision=Precision.bfloat16)).load(tmp_path / "saved")


def test_saving_again_replaces_the_checkpoint_and_leaves_nothing_else(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    trained.save(tmp_path / "saved")
    trained.train([make_samples(4)], 0)
    trained.save(tmp_path / "saved")
    expected = state(trained)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    trained.train([make_samples(4)], 1)
    trained.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(expected, state(trained), strict=True))


def test_the_state_is_that_of_the_moment_though_training_goes_on_while_it_is_written(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen3"), precision=Precision.bfloat16))
    trained.train([make_samples(4)], 0)
    expected = state(trained)
    trained.begin_save(tmp_path / "saved")
    trained.train([make_samples(4)], 1)
    trained.finish_save()
    assert trained.is_saved()
    trained.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(expected, state(trained), strict=True))


def test_a_disk_without_room_is_an_error_before_anything_is_written(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = engine(make_config(models("qwen2")))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"it needs \d MiB; .* has 0 MiB free: make room"):
        trained.begin_save(tmp_path / "saved")


def test_a_file_that_cannot_be_written_is_an_error_and_the_next_save_works(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # larger files fail as they do on a full disk
    try:
        trained.begin_save(tmp_path / "saved")
        with pytest.raises(CheckpointError, match=r"could not be written.*File too large"):
            trained.finish_save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "saved").exists()
    trained.save(tmp_path / "saved")
    trained.load(tmp_path / "saved")


@pytest.mark.slow
def test_killed_while_saving_the_newest_complete_checkpoint_is_one_that_was_saved(models: Models, tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saver.py")
    words = [str(models("qwen2")), str(tmp_path / "checkpoints"), "20", str(tmp_path / "report.json")]
    command = [sys.executable, "-W", "ignore", str(script), *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-6000:]
    rounds = json.loads((tmp_path / "report.json").read_text())
    killed_while_saving, complete, begun = 0, 0, 0
    for number, (loaded, *events) in enumerate(rounds):
        assert loaded["right"], f"round {number} loaded something else than step {loaded['loaded']}"
        assert complete <= loaded["loaded"] <= begun
        complete = max([loaded["loaded"], *(event["complete"] for event in events if "complete" in event)])
        begun = max([complete, *(event["begun"] for event in events if "begun" in event)])
        killed_while_saving += "begun" in events[-1]
    assert killed_while_saving == len(rounds) and complete > len(rounds)
