"""Tests of the trainer that need CUDA: layers in bfloat16 and every parallelism over NCCL give what one rank gives."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.algorithm.choice import algorithm_of
from vime.batches import Lesson
from vime.config import RunConfig
from vime.loop import hand_over, make_steps
from vime.trainer.group import TrainerGroup
from vime.types import Sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make test-gpu")]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]


def hugging_face_logprobs(folder: Path, samples: list[Sample]) -> list[list[float]]:
    """Logprobs of the response tokens, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for sample in samples:
        with torch.no_grad():
            logits = model(torch.tensor([sample.tokens])).logits[0]
        logprobs = torch.log_softmax(logits, dim=-1)[range(len(sample.tokens) - 1), sample.tokens[1:]]
        found.append(logprobs[-sample.response_length :].tolist())
    return found


async def train_once(config: RunConfig, samples: list[Sample], folder: Path) -> tuple[list[list[float]], dict[str, float]]:
    """Logprobs before, and metrics of, one update under a layout."""
    config.cluster.gpus_per_node = config.cluster.num_trainer_gpus = torch.cuda.device_count()
    group = TrainerGroup(config, folder, uuid.uuid4().hex[:8])
    group.start()
    try:
        await group.ready()
        logprobs = await group.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
        algorithm = algorithm_of(config)
        updates = await hand_over(config, algorithm, group, Lesson(updates=[samples]), 0)
        first = await group.forward_backward(updates[0], algorithm)
        return logprobs, (await make_steps(config, algorithm, group, updates, first, 0, keep=False))[0]
    finally:
        await group.stop()


def assert_near(found: list[list[float]], wanted: list[list[float]]) -> None:
    """bfloat16 against float32: near on average, and nowhere far."""
    differences = [abs(a - b) for ours, theirs in zip(found, wanted, strict=True) for a, b in zip(ours, theirs, strict=True)]
    assert sum(differences) / len(differences) < 0.02 and max(differences) < 0.3


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "qwen3_moe"])
def test_the_trainer_has_hugging_faces_logprobs(
    models: Models, make_config: MakeConfig, make_samples: MakeSamples, ray_cluster: None, tmp_path: Path, family: str
) -> None:
    samples = make_samples(9)
    found, metrics = asyncio.run(train_once(make_config(models(family), precision="bfloat16"), samples, tmp_path))
    assert_near(found, hugging_face_logprobs(models(family), samples))
    assert metrics["train/grad_norm"] > 0


@TWO_GPUS
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3", {"tensor_parallel_size": 2}),
        ("qwen3", {"context_parallel_size": 2}),
        ("qwen2", {"pipeline_parallel_size": 2}),
        ("llama", {"data_parallel_size": 2}),
        ("qwen3_moe", {"data_parallel_size": 2, "expert_parallel_size": 2}),
    ],
)
def test_two_gpus_train_like_one(
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    ray_cluster: None,
    tmp_path: Path,
    family: str,
    sizes: dict[str, Any],
) -> None:
    samples = make_samples(12)
    one, expected = asyncio.run(train_once(make_config(models(family), precision="bfloat16"), samples, tmp_path))
    two, found = asyncio.run(train_once(make_config(models(family), precision="bfloat16", **sizes), samples, tmp_path))
    assert_near(two, one)
    for name in ("train/loss", "train/grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=0.03, abs=1e-3), name
