"""Two ranks give what one rank gives: tensor, pipeline and data parallel, on gloo."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vime.config import RunConfig
from vime.trainer.export import write_payload
from vime.types import TrainSample

Models = Callable[..., Path]
LAYOUTS = {
    "tensor": {"tensor_parallel_size": 2},
    "tensor_tied": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
    "pipeline_tied": {"pipeline_parallel_size": 2},
    "data": {"data_parallel_size": 2},
    "data_bfloat16": {"data_parallel_size": 2, "precision": "bfloat16"},
}
KINDS = {"tied": ("qwen2", True), "bfloat16": ("qwen3", False)}
ROOT = Path(__file__).parents[2]


def model_of(name: str) -> tuple[str, bool]:
    return KINDS.get(name.partition("_")[2], ("qwen3", False))


@pytest.fixture(scope="module")
def results(models: Models, tmp_path_factory: pytest.TempPathFactory, world: None) -> tuple[Path, list[dict[str, Any]]]:
    """What both ranks report of all layouts."""
    from vime.trainer.parallel import free_port

    folder = tmp_path_factory.mktemp("parallel")
    layouts = []
    for name, trainer in LAYOUTS.items():
        family, tied = model_of(name)
        model, port = str(models(family, tied=tied)), free_port("127.0.0.1")
        layouts.append({"name": name, "trainer": trainer, "model": model, "port": port})
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "layouts": layouts}))
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-W", "ignore", str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(job)], cwd=ROOT, env=_environment(), stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)[-6000:]
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def one_rank(
    engine: Any, config: RunConfig, samples: list[TrainSample]
) -> tuple[Any, list[dict[str, float]], dict[int, list[float]]]:
    config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
    trained = engine(config)
    metrics = [trained.train([samples], 0), trained.train([samples[:1]], 1)]
    found = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    return trained, metrics, found


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "bfloat16" not in name])
def test_two_ranks_train_like_one(
    results: Any,
    engine: Callable[..., Any],
    models: Models,
    make_config: Callable[..., RunConfig],
    make_samples: Callable[..., list[TrainSample]],
    name: str,
) -> None:
    folder, ranks = results
    family, tied = model_of(name)
    samples = make_samples(13)
    trained, expected, logprobs = one_rank(engine, make_config(models(family, tied=tied)), samples)
    for rank in ranks:
        for found, wanted in zip(rank[name]["metrics"], expected):
            for key in ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/num_tokens", "train/ratio_max"):
                assert found[key] == pytest.approx(wanted[key], rel=2e-4, abs=1e-5), key
    merged = {**ranks[0][name]["logprobs"], **ranks[1][name]["logprobs"]}
    assert len(merged) == len(samples)
    for index, values in logprobs.items():
        assert merged[str(index)] == pytest.approx(values, abs=1e-3)
    saved = load_file(folder / name / "model" / "model.safetensors")
    for key, tensor in trained.export():
        differing = (saved[key] - tensor).abs() > 1e-4
        assert differing.float().mean() < 0.01, f"{key}: {int(differing.sum())} of {tensor.numel()} weights differ"


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_two_ranks_resume_bitwise(results: Any, name: str) -> None:
    for rank in results[1]:
        _, uninterrupted, resumed = rank[name]["metrics"]
        for key in ("train/loss", "train/grad_norm", "train/entropy"):
            assert resumed[key] == uninterrupted[key]


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_the_exported_payload_holds_the_saved_weights_in_bounded_files(results: Any, name: str) -> None:
    from vime.weights import WeightDigest

    folder, ranks = results
    digest = WeightDigest()
    for key, tensor in load_file(folder / name / "model" / "model.safetensors").items():
        digest.update(key, tensor)
    assert ranks[0][name]["digest"] == digest.hexdigest()
    files = sorted((folder / name / "weights").iterdir())
    assert len(files) == ranks[0][name]["num_files"] > 2
    names = [key for path in files for key in load_file(path)]
    assert len(names) == len(set(names)) == digest.num_tensors


def test_only_the_last_two_versions_of_a_payload_stay(
    engine: Callable[..., Any], models: Models, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    payloads = [write_payload(trained.export(), folder=tmp_path, version=version) for version in range(4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor-v2-0.safetensors", "actor-v3-0.safetensors"]
    assert len({payload.digest for payload in payloads}) == 1
    assert payloads[3].num_tensors == len(load_file(payloads[3].files[0]))
    assert torch.equal(load_file(payloads[3].files[0])["model.norm.weight"], dict(trained.export())["model.norm.weight"])
