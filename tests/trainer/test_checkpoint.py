"""Exact checkpoints: bitwise state, equal continuation, and errors instead of half a checkpoint."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import Precision, RunConfig
from vime.errors import CheckpointError
from vime.trainer import checkpoint
from vime.types import TrainSample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[TrainSample]]


def state(engine: Any) -> list[torch.Tensor]:
    """Weights, and everything the optimizer holds, in a fixed order."""
    tensors = [parameter.detach().clone() for parameter in engine.model.parameters()]
    for inner in checkpoint._inner_optimizers(engine.optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                tensors.append(parameter.detach().clone())
                tensors.extend(value.clone() for _, value in sorted(inner.state[parameter].items()))
    return tensors


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


def test_damage_is_found_before_anything_is_loaded(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    folder = tmp_path / "saved"
    trained.save(folder)
    file = folder / "rank_00000.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        trained.load(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        trained.load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="not a complete"):
        trained.load(folder)


def test_a_checkpoint_of_another_precision_is_refused(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    engine(make_config(models("qwen2"))).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="precision"):
        engine(make_config(models("qwen2"), precision=Precision.bfloat16)).load(tmp_path / "saved")


def test_saving_again_replaces_the_checkpoint_and_leaves_nothing_else(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    for _ in range(2):
        trained.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert [entry["file"] for entry in manifest["ranks"]] == ["rank_00000.pt"]
