"""`TrainerGroup`: the driver's side of the trainer, one Ray actor per rank behind a few awaitable methods."""

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError

from vime.cluster.layout import position_of, world_size
from vime.cluster.nodes import Nodes
from vime.cluster.placement import trainer_places, transport
from vime.config import RunConfig, WeightTransfer
from vime.errors import TrainingError
from vime.processes.spare import Spare
from vime.tasks import together
from vime.trainer.rank import TrainerRank
from vime.trainer.shard import PackedUpdate, Shard
from vime.types import Integers, TrainSample
from vime.weights.payload import WeightPayload, payload_folder

logger = logging.getLogger(__name__)

RANK = "trainer ranks"
"""The kind of these parts among those that an ended run leaves (`vime.processes.spare`)."""
EXACT_PINNING = "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64"
"""For PyTorch's allocator: page-locked blocks above 64 MiB are as large as they are asked for, not rounded to powers of two."""
_allocator = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
ACTOR_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "PYTORCH_ALLOC_CONF": f"{_allocator},{EXACT_PINNING}" if _allocator else EXACT_PINNING,
}
"""Threads that wait sleep: spinning, they halve the speed of a trainer that shares its cores with servers."""
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Kernels start in the order of their calls, so that a gather or reduction of tensor-parallel ranks, called first, runs beside
the product that it does not wait for."""
DETERMINISTIC_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the order of a set of texts
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
}
"""Of cuBLAS and NCCL: what of their choices changes the order of a sum."""


def rank_environment(config: RunConfig) -> dict[str, str]:
    """Environment variables of every rank."""
    queue = ONE_QUEUE if config.cluster.gpus_per_node and config.trainer.tensor_parallel_size > 1 else {}
    return ACTOR_ENVIRONMENT | queue | (DETERMINISTIC_ENVIRONMENT if config.deterministic else {})


class TrainerGroup:
    """The trainer of a run: `start`, `await ready`, then train, export, save. Ray must be running.

    Every call goes to all ranks at once, because each is a collective; calls are made one after another. A rank that dies
    ends the run with a `TrainingError` that names it.
    """

    def __init__(
        self, config: RunConfig, run_dir: Path, run_id: str, nodes: Nodes | None = None, *, spare: Spare | None = None
    ) -> None:
        """Without `nodes`, all ranks run on this machine; those of an ended run are in `spare`."""
        self._config = config
        self._nodes, self._spare = nodes, spare or Spare()
        self._key = ""
        self._weights_dir = _weights_dir(config, run_dir, run_id)
        self._ranks: list[Any] = []
        self._renewals: list[Any] = []
        self._addresses: Any = None

    def start(self) -> None:
        """Creates the actors, or takes over those of an ended run, and returns at once; their imports run meanwhile."""
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        environment = rank_environment(self._config)
        places = trainer_places(self._config, world_size(self._config.trainer))
        options = [self._nodes.options(place, devices=True, environment=environment) for place in places]
        self._key = repr(options)
        self._ranks = self._spare.take(RANK, self._key) or []
        if self._ranks:
            self._renewals = [rank.renew.remote(self._config) for rank in self._ranks]
        else:
            actor = ray.remote(TrainerRank)
            created = [actor.options(max_restarts=0, **option) for option in options]
            self._ranks = [each.remote(self._config, rank) for rank, each in enumerate(created)]
        self._addresses = [rank.address.remote() for rank in self._ranks]

    async def ready(self) -> None:
        """Waits until every rank has loaded the model. Raises what a rank raised."""
        await self._spare.end(RANK)
        await self._results("start", self._renewals)
        addresses = await self._results("start", self._addresses)
        await self._all("init", addresses[0])

    async def begin_training(self, updates: list[list[TrainSample]], step: int) -> None:
        """Computes the first gradient of a batch, of one optimizer step per inner list; the weights stay as they are.

        Raises `TrainingError`.
        """
        parts = await asyncio.to_thread(self._hand_over, updates, step)  # for a large batch, seconds in which rollouts go on
        data_ranks = [position_of(rank, self._config.trainer).data for rank in range(len(self._ranks))]
        pairs = zip(self._ranks, data_ranks, strict=True)
        await self._results("training", [rank.begin_training.remote(parts[data_rank], step) for rank, data_rank in pairs])

    async def finish_training(self) -> dict[str, float]:
        """Makes the optimizer steps of the batch that was begun; metrics are named `train/…`. Raises `TrainingError`."""
        return (await self._engines("finish_training"))[0]

    async def train(self, updates: list[list[TrainSample]], step: int) -> dict[str, float]:
        """Trains on a batch: `begin_training` and `finish_training`."""
        await self.begin_training(updates, step)
        return await self.finish_training()

    def _hand_over(self, updates: list[list[TrainSample]], version: int) -> list[list[Shard]]:
        """Puts the blocks of every shard into Ray's store; returns the shards by data-parallel rank, whose ranks share them."""
        packed = [PackedUpdate(self._config, samples, version=version) for samples in updates if samples]
        num_ranks = self._config.trainer.data_parallel_size
        return [[update.shard(rank, keep=ray.put) for update in packed] for rank in range(num_ranks)]

    async def trained_logprobs(self) -> dict[tuple[int, int], np.ndarray]:
        """The trainer's logprobs of the tokens of the last batch, by update (of those with samples) and place of the sample."""
        found: dict[tuple[int, int], np.ndarray] = {}
        for part in await self._engines("trained_logprobs"):
            found |= part
        return found

    async def logprobs(self, tokens: Sequence[Integers], response_lengths: list[int], temperature: float) -> list[list[float]]:
        """Logprobs of the last `response_lengths[i]` tokens of each sequence under the current weights."""
        found: dict[int, list[float]] = {}
        for part in await self._engines("logprobs", tokens, response_lengths, temperature):
            found |= part
        return [found[index] for index in range(len(tokens))]

    async def export_weights(self, version: int) -> WeightPayload:
        """Writes the current weights as files that servers can read, and describes them as `version`."""
        return (await self._all("export_weights", self._weights_dir, version))[0]

    async def connect(self, urls: list[str], num_workers: list[int], secret: str | None) -> None:
        """Opens a transport without files to these servers; `num_workers` counts the processes of each."""
        await self._all("connect", urls, num_workers, secret)

    async def send_weights(self, version: int) -> WeightPayload:
        """Sends the current weights over the transport that `connect` opened, and describes them; there are no files."""
        return (await self._all("send_weights", version))[0]

    async def offload(self, *, weights: bool) -> None:
        """Frees the GPU memory of gradients and optimizer, and with `weights` also that of the weights."""
        await self._engines("offload", weights=weights)

    async def onload(self) -> None:
        """Restores the state that `offload` removed from the GPUs."""
        await self._engines("onload")

    async def begin_save(self, folder: Path) -> None:
        """Copies the state in memory; the ranks write it into `folder` while other calls go on. Raises `CheckpointError`."""
        await self._engines("begin_save", folder)

    async def is_saved(self) -> bool:
        """True once all ranks have written their files, or failed to; answered between other calls."""
        return all(await self._engines("is_saved"))

    async def finish_save(self) -> None:
        """Waits for the files of `begin_save` and makes the folder complete. Raises `CheckpointError`."""
        await self._engines("finish_save")

    async def save(self, folder: Path) -> None:
        """Writes an exact checkpoint into `folder`, whole or not at all."""
        await self.begin_save(folder)
        await self.finish_save()

    async def load(self, folder: Path) -> None:
        """Restores an exact checkpoint. Raises `CheckpointError`."""
        await self._engines("load", folder)

    async def save_hugging_face(self, folder: Path) -> None:
        """Writes a checkpoint folder that transformers and vLLM load."""
        await self._engines("save_hugging_face", folder)

    async def stop(self) -> None:
        """Ends the ranks or leaves them to the next run, and removes the exported weights; safe at any time, also twice."""
        ranks, self._ranks = self._ranks, []
        if not ranks or not self._spare.put(RANK, self._key, ranks, end=partial(_kill, ranks)):
            await _kill(ranks)
        shutil.rmtree(self._weights_dir, ignore_errors=True)

    async def _engines(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Calls a method of the engines of all ranks, and returns their results."""
        calls = [rank.call.remote(method, *arguments, **options) for rank in self._started]
        return await self._results(method, calls)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await self._results(method, [getattr(rank, method).remote(*arguments) for rank in self._started])

    @property
    def _started(self) -> list[Any]:
        assert self._ranks, "start comes first, and nothing comes after stop"
        return self._ranks

    async def _results(self, what: str, calls: list[Any]) -> list[Any]:
        """All ranks' results in order; the first failure ends the wait, since the others may hang in a collective."""

        async def one(rank: int, call: Any) -> Any:
            try:
                return await call
            except RayActorError as error:
                raise TrainingError(
                    f"trainer rank {rank} died during {what} ({error}); out of memory is the usual cause: lower "
                    "trainer.max_tokens_per_micro_batch, then resume from the last checkpoint"
                ) from error

        return await together(one(rank, call) for rank, call in enumerate(calls))


async def _kill(ranks: list[Any]) -> None:
    for rank in ranks:
        ray.kill(rank)


def _weights_dir(config: RunConfig, run_dir: Path, run_id: str) -> Path:
    """Shared memory where all parts are on one machine, otherwise a folder of the run."""
    external = any(model.trained and model.urls for model in config.serving.models.values())
    on_disk = transport(config) is WeightTransfer.disk or config.cluster.num_nodes > 1 or external
    shared = payload_folder(run_id)
    return run_dir / "weights" if on_disk or not shared.parent.is_dir() else shared
