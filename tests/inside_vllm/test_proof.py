"""In bfloat16, at a learning rate of 1e-6, a tensor that arrives but is not loaded stops the run, whatever it is.

Real vLLM servers that start with random weights: one with biases and a tied head, one with experts, norms of queries and keys,
and a head of its own. What is broken is what vLLM's loader gets, after the digest.
"""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests import chosen
from tests.expert_models import save_experts
from vime.config import Precision, ServingConfig, WeightTransfer
from vime.errors import WeightSyncError
from vime.processes.control import call
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.sync.direct_sync import DirectSync
from vime.sync.file_sync import FileSync
from vime.weights.payload import NO_VERSION, WeightDigest, WeightPayload
from vime.weights.policy import Policy

LEARNING_RATE = 1e-6
ATTENTION, EXPERT = "model.layers.1.self_attn", "model.layers.1.mlp.experts.3"
DROPPED = {
    "tied": [
        *(f"{ATTENTION}.q_proj.weight", f"{ATTENTION}.q_proj.bias", "model.layers.1.mlp.up_proj.weight"),
        *("model.embed_tokens.weight", "model.norm.weight"),
    ],
    "experts": [
        *(f"{EXPERT}.{part}_proj.weight" for part in ("gate", "up", "down")),
        *("model.layers.1.mlp.gate.weight", f"{ATTENTION}.k_norm.weight", "lm_head.weight"),
    ],
}


class Trainer:
    """Stand-in for the trainer: float32 masters that move as Adam moves them, seen by the servers in bfloat16."""

    def __init__(self, checkpoint: Path, folder: Path, serving: ServingConfig) -> None:
        with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
            self.masters = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        self._folder, self._sender, self.serving = folder, None, serving
        self.version = 0
        self.interrupt: Any = None
        """Called in the middle of the next transfer."""

    def step(self) -> None:
        """One optimizer step."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        for master in self.masters.values():
            master += LEARNING_RATE * torch.randn(master.shape, generator=generator).sign()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that are sent."""
        for number, (name, master) in enumerate(self.masters.items()):
            if self.interrupt is not None and number == len(self.masters) // 2:
                interrupt, self.interrupt = self.interrupt, None
                interrupt()
            yield name, master.bfloat16()

    def shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Names, dtypes and shapes of the tensors that `tensors` yields."""
        return [(name, torch.bfloat16, tuple(master.shape)) for name, master in self.masters.items()]

    def payload(self) -> WeightPayload:
        """The weights as files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file, digest, tensors = self._folder / f"actor-v{self.version}-0.safetensors", WeightDigest(), dict(self.tensors())
        for name, tensor in tensors.items():
            digest.update(name, tensor)
        save_file(tensors, file)
        return WeightPayload(version=self.version, files=[str(file)], num_tensors=len(tensors), digest=digest.hexdigest())

    async def connect(self, urls: list[str], num_workers: list[int], secret: str | None) -> None:
        """Opens gloo."""
        from vime.weights.sender import DirectSender

        def open_sender() -> DirectSender:
            where: dict[str, Any] = {"urls": urls, "num_workers": num_workers, "rank": 0, "host": "127.0.0.1", "secret": secret}
            return DirectSender(WeightTransfer.gloo, self.tensors, self.shapes, serving=self.serving, **where)

        self._sender = await asyncio.to_thread(open_sender)

    async def export_weights(self, version: int, *, is_whole: bool = False) -> WeightPayload:
        """The weights as files."""
        return self.payload()

    async def send_weights(self, version: int) -> WeightPayload:
        """Sends the weights over gloo."""
        assert self._sender is not None
        return await asyncio.to_thread(self._sender.send, version)


class Stack:
    """One family's server with its trainer, and both ways of the weights."""

    def __init__(self, config: Any, serving: Serving, trainer: Trainer, policy: Policy) -> None:
        self.serving, self.trainer, self.config, self._policy = serving, trainer, config, policy

    def open(self) -> None:
        trainer: Any = self.trainer
        self._files = FileSync(self.serving, trainer, self.config, self._policy)
        self._direct = DirectSync(self.serving, trainer, self._policy)

    async def sync(self, way: str) -> dict[str, float]:
        if way == "files":
            return await self._files.sync(self.trainer.version)
        return await self._direct.sync(self.trainer.version)

    async def drop(self, *names: str) -> None:
        async with aiohttp.ClientSession() as session:
            url, body = self.serving.trained_endpoint().worker_urls[0], {"method": "drop", "args": list(names)}
            await call(session, url, "/collective_rpc", timeout_seconds=30.0, body=body)


@pytest.fixture(scope="module", params=chosen.parameters(DROPPED, {"experts"}))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stack(
    family: str,
    checkpoints: dict[str, Path],
    ray_cluster: None,
    make_serving_config: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path_factory.mktemp(family)
    checkpoint = checkpoints.get(family) or save_experts(folder / "checkpoint", checkpoints["untied"])
    config = make_serving_config(checkpoint)
    config.cluster.weight_transfer = WeightTransfer.gloo  # whose servers load files too
    config.trainer.precision = Precision.bfloat16
    policy = Policy()
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    made = Stack(config, serving, Trainer(checkpoint, serving.payload_folder, config.serving), policy)
    serving.start()
    try:
        asyncio.run(serving.ready())
        made.open()
        yield made
    finally:
        asyncio.run(serving.stop())


async def each_drop_stops(stack: Stack, family: str) -> None:
    for way in ("files", "gloo"):
        for name in DROPPED[family]:
            await stack.drop(name)
            expected = name if "experts" not in name else name.rsplit(".", 2)[0]
            with pytest.raises(WeightSyncError) as error:
                await stack.sync(way)
            assert f"{expected}" in str(error.value) and "nothing was loaded" in str(error.value), (way, error.value)
    await stack.drop()


async def test_a_dropped_tensor_stops_the_run_at_the_first_and_at_the_third_sync(stack: Stack, family: str):
    client = TokenClient(stack.serving.trained_endpoint(), stack.config.serving)
    sampled = await client.generate(
        [1, 2], sampling={"max_tokens": 2}, session_id="a", request_id="a", minimum_version=NO_VERSION
    )
    assert set(sampled.weight_versions) == {NO_VERSION}, "a server without weights says so"
    await client.close()
    await each_drop_stops(stack, family)
    for way in ("files", "gloo"):
        metrics = await stack.sync(way)
        assert metrics["sync/num_servers"] == 1 and metrics["sync/num_unread_tensors"] == 0
        stack.trainer.step()
    await each_drop_stops(stack, family)
    for way in ("files", "gloo"):
        await stack.sync(way)


async def test_a_server_that_is_killed_in_the_middle_of_a_transfer_gets_files(stack: Stack, family: str):
    if family != "tied":
        pytest.skip("one family is enough")
    actor = stack.serving.actors("actor")["actor-0"]
    server = psutil.Process(await actor.pid.remote()).children()[0].children()[0]
    await stack.sync("gloo")
    stack.trainer.step()
    stack.trainer.interrupt = server.kill
    metrics = await stack.sync("gloo")
    assert metrics["sync/num_servers"] == 0 and stack.trainer.interrupt is None
    await actor.wants_weights.remote()
    await actor.sync.remote(stack.trainer.payload())
    await stack.serving.ready()
    client = TokenClient(stack.serving.trained_endpoint(), stack.config.serving)
    about: dict[str, Any] = {"session_id": "a", "request_id": "b", "minimum_version": stack.trainer.version}
    assert (await client.generate([1, 2], sampling={"max_tokens": 2}, **about)).weight_versions
    await client.close()
    stack.trainer.step()
    assert (await stack.sync("gloo"))["sync/num_servers"] == 1
