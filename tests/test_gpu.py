"""Tests of whole systems that need CUDA: turns on one GPU, weights by `ipc` and `nccl`, bfloat16, prefill and decode apart.

`make test-gpu` runs it.
"""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.cluster.placement import transport
from vime.preflight.compose import compose_run
from vime.serving.client import TokenClient
from vime.system import evaluation, training
from vime.types import Sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make test-gpu")]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
APART = ["cluster=one_gpu", "cluster.gpus_per_node=2", "cluster.colocated=false", "rollout.max_staleness=1"]


def samples(count: int) -> list[Sample]:
    """Demonstrations of random tokens, to move the weights."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        tokens = torch.randint(300, (64,), generator=generator).tolist()
        columns = {"logprob": -5.0, "advantage": 1.0, "weight": 1 / 32 / count}
        found.append(Sample(tokens=tokens, loss_mask=[1] * 32, columns=columns))
    return found


async def sync_train_sync(config: Any, folder: Path) -> list[dict[str, float]]:
    """Metrics of two syncs, with an update and a checkpoint between them."""
    async with training(config, folder, say=lambda text: None) as system:
        first = await system.sync(0) | await system.compared()
        async with system.training() as trainer:
            update = await trainer.hand_over(system.algorithm, samples(16), version=0)
            await trainer.forward_backward(update, system.algorithm)
            trained = await trainer.step(optimizer={"lr": config.trainer.lr})
        assert trained["train/grad_norm"] > 0
        second = await system.sync(1) | await system.compared()
        async with system.trainer_awake() as trainer:
            await trainer.save_hugging_face(folder / "model")
        third = await system.sync(2) | await system.compared()
    return [first, second, third]


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["cluster=one_gpu"], "ipc"),
        (["cluster=one_gpu", "cluster.weight_transfer=shm"], "shm"),
        pytest.param(APART, "nccl", marks=TWO_GPUS),
        pytest.param([*APART, "cluster.weight_transfer=disk"], "disk", marks=TWO_GPUS),
    ],
)
def test_weights_reach_servers_on_gpus_and_logprobs_agree_in_bfloat16(words: list[str], way: str, tmp_path: Path):
    config = compose_run(["+method=memagent", "trainer.precision=bfloat16", *words]).config
    assert transport(config).value == way
    for metrics in asyncio.run(sync_train_sync(config, tmp_path)):
        assert metrics["sync/num_servers"] == 1 and metrics["sync/bytes"] > 1_000_000
        assert metrics["probe/max_difference_cold"] < 0.1 and metrics["probe/max_difference_cached"] < 0.1
    assert (tmp_path / "model" / "model.safetensors").exists()


async def greedy_tokens(config: Any, folder: Path) -> list[list[int]]:
    """Replies of the router's servers, with prefill and decode apart, and of the decode server alone."""
    prompt, sampling = list(range(40, 240)), {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True}
    async with evaluation(config, folder, say=lambda text: None) as agents:
        endpoint = agents.serving.trained_endpoint()
        clients = [TokenClient(where, config.serving) for where in (endpoint, endpoint.workers()[1])]
        found = [await client.generate(prompt, sampling=sampling, session_id="s", request_id="r") for client in clients]
        for client in clients:
            await client.close()
    return [list(turn.output_ids) for turn in found]


@TWO_GPUS
@pytest.mark.skipif(find_spec("nixl") is None, reason="needs the package nixl")
def test_prefill_and_decode_servers_write_the_greedy_tokens_of_one(tmp_path: Path):
    groups = [f"+serving.models.actor.groups.{role}.role={role}" for role in ("prefill", "decode")]
    apart = ["cluster=one_gpu", "cluster.gpus_per_node=2", "cluster.colocated=false", "cluster.num_trainer_gpus=0"]
    config = compose_run(["+method=memagent", "trainer.precision=bfloat16", *apart, *groups]).config
    together, alone = asyncio.run(greedy_tokens(config, tmp_path))
    assert together == alone
