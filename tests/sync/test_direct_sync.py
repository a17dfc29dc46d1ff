"""Weights sent straight from two trainer ranks to two servers, and files for a server that was lost meanwhile."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from vime.preflight.compose import compose_run
from vime.system import Training, training

pytestmark = [pytest.mark.long, pytest.mark.in_turn]
SHAPE = {
    "family": "qwen3",
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}


async def kill(actor: Any) -> None:
    """Ends a server's program, not its supervisor."""
    supervisor = psutil.Process(await actor.pid.remote()).children()[0]
    supervisor.children()[0].send_signal(signal.SIGKILL)


async def synced(system: Training, version: int) -> dict[str, float]:
    """Metrics of one sync and of its probe."""
    return await system.sync(version) | await system.compared()


async def lose_servers(config: Any, folder: Path) -> list[dict[str, float]]:
    """Metrics of each sync: the second server is killed before the third and back before the fourth, both before the last."""
    async with training(config, folder, say=lambda text: None) as system:
        serving = system.agents.serving
        metrics = [await synced(system, version) for version in (0, 1)]
        await kill(serving.actors("actor")["actor-1"])
        while not await serving.events():
            await asyncio.sleep(0.2)
        metrics.append(await synced(system, 2))
        deadline = time.monotonic() + 300
        while (events := [event["event"] for event in await serving.events()]) != ["recovered"]:
            assert events == [] and time.monotonic() < deadline
            await asyncio.sleep(0.2)
        metrics.append(await synced(system, 3))
        for actor in serving.actors("actor").values():
            await kill(actor)
        metrics.append(await synced(system, 4))
    return metrics


def test_weights_reach_servers_without_files_and_a_lost_one_gets_them_as_files(two_key_checkpoint: Path, tmp_path: Path):
    overrides = [
        "+method=memagent",
        f"model.checkpoint={two_key_checkpoint}",
        *(f"model.{key}={value}" for key, value in SHAPE.items()),
        "trainer.tensor_parallel_size=2",
        "trainer.num_threads=1",
        "cluster.weight_transfer=gloo",
        "serving.models.actor.num_replicas=2",
        "serving.models.actor.max_model_len=1024",
        "serving.models.actor.gpu_memory_utilization=0.01",
    ]
    metrics = asyncio.run(lose_servers(compose_run(overrides).config, tmp_path))
    assert [found["sync/num_servers"] for found in metrics[:4]] == [2, 2, 1, 2]
    assert [found["probe/num_servers"] for found in metrics[:4]] == [2, 2, 1, 2], "a server that is down is left out"
    assert metrics[4]["probe/num_servers"] >= 1, "no sync is over before a server has its weights"
    assert len({found["sync/bytes"] for found in metrics}) == 1 and metrics[0]["sync/bytes"] > 100_000
    for found in metrics:
        assert max(found["probe/max_difference_cold"], found["probe/max_difference_cached"]) < 1e-4
