"""`TrainerGroup`: the driver's side of the trainer, one Ray actor per rank behind a few awaitable methods."""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from vime.algorithm.algorithm import Algorithm, Forward, Question
from vime.cluster.layout import position_of, world_size
from vime.cluster.nodes import Nodes
from vime.cluster.placement import trainer_places, transport
from vime.config import RunConfig, WeightTransfer, policies
from vime.errors import RankLostError, VimeError
from vime.processes.spare import Spare
from vime.tasks import together
from vime.trainer.metrics import SKIPPED
from vime.trainer.rank import TrainerRank
from vime.trainer.shard import PackedUpdate, Shard
from vime.types import Integers, Sample
from vime.weights.payload import WeightPayload, payload_folder

logger = logging.getLogger(__name__)

RANK = "trainer ranks"
"""The kind of these parts among those that an ended run leaves (`vime.processes.spare`)."""
PINNING = "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64"
PINNING += ",pinned_use_cuda_host_register:True,pinned_num_register_threads:8"
"""Settings of PyTorch's allocator: page-locked blocks above 64 MiB have the requested size, not rounded to powers of two; and
eight threads lock their pages, in a third of the time of one."""
_allocator = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
ACTOR_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "PYTORCH_ALLOC_CONF": f"{_allocator},{PINNING}" if _allocator else PINNING,
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
"""Settings of cuBLAS and NCCL for those of their choices that change the order of a sum."""


def rank_environment(config: RunConfig) -> dict[str, str]:
    """Environment variables of every rank."""
    queue = ONE_QUEUE if config.cluster.gpus_per_node and config.trainer.tensor_parallel_size > 1 else {}
    return ACTOR_ENVIRONMENT | queue | (DETERMINISTIC_ENVIRONMENT if config.deterministic else {})


Known = list[list[Any]]
"""Columns that the trainer computed: references to those of each block, by data-parallel rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Sequences whose columns lie in Ray's store, and their packing."""

    packed: PackedUpdate
    shards: list[Shard]
    """Shards of the update by data-parallel rank."""

    def with_known(self, columns: Known) -> "Update":
        """This update with columns that a forward pass returned."""
        return replace(self, shards=[shard.with_known(found) for shard, found in zip(self.shards, columns, strict=True)])


class TrainerGroup:
    """The trainer of a run: `start`, `await ready`, then the verbs of `vime.trainer.engine`. Ray must be running.

    Every call goes to all ranks at once, because each is a collective; calls are made one after another. A rank that dies
    ends the run with a `RankLostError` that names it.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        run_id: str,
        nodes: Nodes | None = None,
        *,
        spare: Spare | None = None,
    ) -> None:
        """Without `nodes`, all ranks run on this machine; those of an ended run are in `spare`.

        With several adapters (`config.adapters`) the ranks train all of them on one model, and `of` gives each.
        """
        self._config, self._configs = config, dict(policies(config))
        self._of = next(iter(self._configs))
        self._nodes, self._spare = nodes, spare or Spare()
        self._key = ""
        self._weights_dir = _weights_dir(config, run_dir, run_id)
        self._ranks: list[Any] = []
        """The same list for all policies, see `of`."""
        self.num_moves = 0
        """Optimizer steps that these verbs have made, of the weights of their name."""
        self._renewals: list[Any] = []
        self._addresses: Any = None

    async def loaded(self) -> None:
        """Starts the ranks and waits until every one has loaded the model. Raises what a rank raised."""
        self.start()
        await self.ready()

    def start(self) -> None:
        """Creates the actors, or takes over those of an ended run, and returns at once; their imports run meanwhile."""
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        environment = rank_environment(self._config)
        places = trainer_places(self._config, world_size(self._config.trainer))
        options = [self._nodes.options(place, devices=True, environment=environment) for place in places]
        self._key = repr(options)
        self._ranks[:] = self._spare.take(RANK, self._key) or []
        if self._ranks:
            self._renewals = [rank.renew.remote(self._configs) for rank in self._ranks]
        else:
            actor = ray.remote(TrainerRank)
            created = [actor.options(max_restarts=0, **option) for option in options]
            self._ranks[:] = [each.remote(self._configs, rank) for rank, each in enumerate(created)]
        self._addresses = [rank.address.remote() for rank in self._ranks]

    async def ready(self) -> None:
        """Waits until every rank has loaded the model. Raises what a rank raised."""
        await self._spare.end(RANK)
        await self._results("start", self._renewals)
        addresses = await self._results("start", self._addresses)
        await self._results("init", [rank.init.remote(addresses[0]) for rank in self._started])

    def of(self, name: str) -> "TrainerGroup":
        """The same ranks, for the verbs of the adapter of this name, or of the critic's weights (`CRITIC`)."""
        view = copy(self)
        view._config, view._of, view.num_moves = self._configs.get(name, self._config), name, 0
        return view

    async def add(self, name: str, config: RunConfig) -> "TrainerGroup":
        """Gives the model further adapters with an optimizer of their own, and returns their verbs, as `of` does.

        The model's own weights, its layout and its algorithm are those of this group; `config` has the rank, the seed, or the
        folder that they begin with. Without a rank the model itself is loaded anew, with a new optimizer, in the place of the
        last one. Raises `ConfigError` if that does not fit.
        """
        await self._results("add", [rank.add.remote(name, config) for rank in self._started])
        self._configs[name] = config
        return self.of(name)

    async def remove(self, name: str) -> None:
        """Frees the adapters that `add` has given; a model that it has loaded stays until the next one."""
        del self._configs[name]
        await self._results("remove", [rank.remove.remote(name) for rank in self._started])

    async def hand_over(
        self, algorithm: Algorithm, samples: Sequence[Sample], *, version: int, has_advantages: bool = True
    ) -> Update:
        """Packs the sequences of an update, or of a part of one, and puts their columns into Ray's store.

        `version` is that of the weights in training. Raises `SampleError` if a sequence lacks what the algorithm needs.
        """

        about = {"version": version, "has_advantages": has_advantages}
        return await self._packed(partial(PackedUpdate.of, self._config, algorithm, samples, **about))

    async def _packed(self, pack: Callable[[], PackedUpdate]) -> Update:
        """The update that `pack` returns, in a thread: of a large batch it takes seconds, in which rollouts go on."""

        def put() -> Update:
            packed = pack()
            num_ranks = self._config.trainer.data_parallel_size
            return Update(packed=packed, shards=[packed.shard(rank, keep=ray.put) for rank in range(num_ranks)])

        return await asyncio.to_thread(put)

    async def forward(self, update: Update, needs: Sequence[Forward]) -> Known:
        """Columns of the trained tokens under present or second weights; they stay with the trainer unless `read` asks."""
        found = await self._results("forward", self._with_shards(update, "forward", needs))
        return self._by_data_rank(found)

    async def answer(self, question: Question, *, version: int) -> list[dict[str, np.ndarray]]:
        """The columns of the sequences of a question, by sequence; of these only tokens, mask and its own columns are read."""
        about = {"version": version, "columns": question.columns, "with_logprobs": False}
        update = await self._packed(partial(PackedUpdate, self._config, question.sequences, **about))
        return await self.read(update, await self.forward(update, [question.need]))

    async def forward_backward(
        self, update: Update, algorithm: Algorithm, *, keep: bool = False
    ) -> tuple[dict[str, float], Known | None]:
        """Adds the gradients of an update to those that are there; returns sums, and with `keep` the column `trained`.

        The weights stay as they are. Only `train/num_skipped_updates` is returned of an update that is not finite and is skipped;
        its gradients are gone. Raises `TrainingError`.
        """
        calls = self._with_shards(update, "forward_backward", algorithm.config, keep)
        found = await self._results("training", calls)
        has_columns = keep and SKIPPED not in found[0].sums
        return found[0].sums, self._by_data_rank([passed.columns for passed in found]) if has_columns else None

    async def step(self, *, optimizer: Mapping[str, float], step: int = 0) -> dict[str, float]:
        """One step with the accumulated gradients; `optimizer` has `lr`, and other options that differ from the configuration.

        Raises `TrainingError` that names the `step`; see `Engine.step`.
        """
        found = (await self._engines("step", optimizer=optimizer, step=step))[0]
        self.num_moves += SKIPPED not in found
        return found

    async def read(self, update: Update, columns: Known) -> list[dict[str, np.ndarray]]:
        """The columns that a pass returned, by sequence of the update."""
        return update.packed.by_sample([await asyncio.to_thread(ray.get, of_blocks) for of_blocks in columns])

    def _with_shards(self, update: Update, method: str, *arguments: Any) -> list[Any]:
        places = [position_of(rank, self._config.trainer).data for rank in range(len(self._started))]
        return [
            getattr(rank, method).remote(self._of, update.shards[place], *arguments) for rank, place in zip(self._ranks, places)
        ]

    def _by_data_rank(self, found: list[Any]) -> Known:
        """The ranks' values, by data-parallel rank: one of those with the same data has answered."""
        columns: dict[int, list[Any]] = {
            position_of(rank, self._config.trainer).data: answer for rank, answer in enumerate(found) if answer is not None
        }
        return [columns[rank] for rank in range(self._config.trainer.data_parallel_size)]

    async def peak_bytes(self) -> float:
        """The most memory that any rank has held so far, see `TrainerRank.peak_bytes`."""
        return float(max(await self._results("peak_bytes", [rank.peak_bytes.remote() for rank in self._started])))

    async def logprobs(self, tokens: Sequence[Integers], response_lengths: list[int], temperature: float) -> list[list[float]]:
        """Logprobs of the last `response_lengths[i]` tokens of each sequence under the current weights."""
        found: dict[int, list[float]] = {}
        for part in await self._engines("logprobs", tokens, response_lengths, temperature):
            found |= part
        return [found[index] for index in range(len(tokens))]

    async def export_weights(self, version: int, *, is_whole: bool = False) -> WeightPayload:
        """Writes the current weights as files that servers can read, and describes them as `version`.

        With `cluster.num_delta_syncs` the files are differences from the last ones, where they may be and need not be whole.
        """
        return (await self._all("export_weights", self._weights_dir, version, is_whole))[0]

    async def export_saved(self, saved: Path, *, name: str, version: int) -> WeightPayload:
        """Writes what was saved as files that servers can read.

        With a `name` of theirs that is an adapter, of `save_adapter`; without it a model, of `save_hugging_face`.
        """
        call = self._started[0].export_saved.remote(name, saved, self._weights_dir, version)
        return (await self._results("export_saved", [call]))[0]

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

    async def load(self, folder: Path, *, optimizer: bool = True) -> None:
        """Restores an exact checkpoint, or without the `optimizer` its weights alone. Raises `CheckpointError`."""
        await self._engines("load", folder, optimizer=optimizer)

    async def save_hugging_face(self, folder: Path) -> None:
        """Writes a checkpoint folder that transformers and vLLM load."""
        await self._engines("save_hugging_face", folder)

    async def save_adapter(self, folder: Path) -> None:
        """Writes the adapters as a folder that PEFT and vLLM load."""
        await self._engines("save_adapter", folder)

    async def stop(self) -> None:
        """Ends the ranks or leaves them to the next run, and removes the exported weights; safe at any time, also twice."""
        ranks = list(self._ranks)
        self._ranks.clear()
        if not ranks or not self._spare.put(RANK, self._key, ranks, end=partial(_kill, ranks)):
            await _kill(ranks)
        shutil.rmtree(self._weights_dir, ignore_errors=True)

    async def _engines(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Calls a method of the engines of all ranks, and returns their results."""
        calls = [rank.call.remote(self._of, method, *arguments, **options) for rank in self._started]
        return await self._results(method, calls)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await self._results(method, [getattr(rank, method).remote(self._of, *arguments) for rank in self._started])

    @property
    def _started(self) -> list[Any]:
        assert self._ranks, "start comes first, and nothing comes after stop"
        return self._ranks

    async def _results(self, what: str, calls: list[Any]) -> list[Any]:
        """All ranks' results in order; the first failure ends the wait, since the others may hang in a collective.

        Errors that vime raised on purpose come without Ray's wrapping.
        """

        async def one(rank: int, call: Any) -> Any:
            try:
                return await call
            except RayTaskError as error:
                if isinstance(error.cause, VimeError):
                    raise error.cause from error
                raise
            except RayActorError as error:
                raise RankLostError(
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
