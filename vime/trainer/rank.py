"""`TrainerRank`: the Ray actor in whose process one rank's `Engine` works. Every method is a collective over all ranks."""

import gc
import logging
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ray

from vime.algorithm.algorithm import Forward
from vime.cluster.accelerators import CPU_BUILD, GPU_BUILD, why_no_device
from vime.cluster.layout import world_size
from vime.cluster.placement import sends_adapters, sends_integers, trainer_places, transport
from vime.cluster.ports import LOOPBACK
from vime.config import CRITIC, AlgorithmConfig, Fp8Recipe, RunConfig, TrainedQuantization
from vime.errors import ConfigError, Problem
from vime.processes.output import send_output_to
from vime.trainer.shard import Shard
from vime.weights.payload import WeightPayload

if TYPE_CHECKING:
    from vime.trainer.metrics import Passed

logger = logging.getLogger(__name__)


class TrainerRank:
    """One process of the trainer. Megatron is imported in the actor's process, never in the driver's."""

    def __init__(self, configs: Mapping[str, RunConfig], rank: int) -> None:
        self._rank = rank
        self._engines: dict[str, Any] = {}
        self._sender: Any = None
        self._store: Any = None
        """The store of rank 0 at which the ranks meet."""
        self._sent: Any = None
        self._begin(configs)

    def _begin(self, configs: Mapping[str, RunConfig]) -> None:
        """Takes part in this run from now on; its log gets the output."""
        self._configs, self._config = configs, next(iter(configs.values()))
        if self._config.output_dir is not None:
            send_output_to(Path(self._config.output_dir) / "logs" / f"trainer-{self._rank}.log")

    def renew(self, configs: Mapping[str, RunConfig]) -> None:
        """Becomes a rank of another run: leaves the world, and frees the model and the optimizer; `address` and `init` follow."""
        from vime.trainer import parallel

        if self._sender is not None:
            self._sender.close()
        self._engines, self._sender, self._sent = {}, None, None
        gc.collect()
        parallel.shutdown()
        self._begin(configs)

    def address(self) -> str:
        """Imports the engine; rank 0 opens the store at which the ranks meet and returns its address (host:port), others ''."""
        import_megatron(self._config)
        from vime.trainer.parallel import open_store

        if self._rank:
            return ""
        self._store = open_store(self._host())
        return f"{self._host()}:{self._store.port}"

    def init(self, address: str) -> None:
        """Joins the world and loads the model.

        Raises `ConfigError` or `CheckpointError` for a checkpoint that does not fit, and `ConfigError` where a trainer on GPUs
        finds none: it would train on the cores.
        """
        import torch

        if self._config.cluster.gpus_per_node and not torch.cuda.is_available():
            reason = why_no_device(CPU_BUILD if torch.version.cuda is None else GPU_BUILD) or "its devices cannot be used"
            remedy = f"torch {torch.__version__} finds no GPU on {self._host()}: {reason}"
            raise ConfigError([Problem(key="cluster.gpus_per_node", value=self._config.cluster.gpus_per_node, remedy=remedy)])
        import_megatron(self._config)

        if not gc.get_freeze_count():
            gc.freeze()  # what is imported by now stays: looking through it for garbage takes a quarter of a second each time
        from vime.trainer import parallel
        from vime.trainer.engine import Engine

        torch.use_deterministic_algorithms(self._config.deterministic)
        parallel.initialize(
            self._config.trainer,
            rank=self._rank,
            seed=self._config.seed,
            store=self._store or parallel.store_at(address),
            num_neighbours=num_neighbours(self._config, self._rank),
        )
        if number := self._config.cluster.num_delta_syncs:
            from vime.weights.delta import Sent

            self._sent = Sent(number)
        for name, config in self._configs.items():
            engine = Engine(config, beside=next(iter(self._engines.values()), None))
            self._engines[name] = engine
            if engine.critic is not None:
                self._engines[CRITIC] = engine.critic
        logger.info("trainer rank %d is ready (pid %d)", self._rank, os.getpid())

    def add(self, name: str, config: RunConfig) -> None:
        """Gives the model further adapters under a name, with an optimizer of their own; without a rank, loads the model anew.

        Raises `ConfigError`.
        """
        from vime.trainer.engine import Engine

        if not config.trainer.lora.rank:
            self._engines.clear()
            gc.collect()
        assert name not in self._engines, f"there are adapters {name} already"
        self._engines[name] = Engine(config, beside=next(iter(self._engines.values()), None))

    def remove(self, name: str) -> None:
        """Frees the adapters of a name that `add` has given, and their optimizer; a whole model stays until the next `add`."""
        if len(self._engines) == 1:
            return
        removed = self._engines.pop(name)
        next(iter(self._engines.values())).activate()
        del removed
        gc.collect()

    def pid(self) -> int:
        """Process id."""
        return os.getpid()

    def peak_bytes(self) -> int:
        """The most memory that this process has held: on a GPU in tensors, otherwise resident."""
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _engine(self, of: str) -> Any:
        """The engine of the weights of a name, with its adapters in the model."""
        engine = self._engines[of]
        if len(self._engines) > 1:
            engine.activate()
        return engine

    def forward(self, of: str, shard: Shard, needs: Sequence[Forward]) -> list[Any] | None:
        """See `Engine.forward`. Blocks and columns lie in Ray's object store; the ranks with the same data share them."""
        engine = self._engine(of)
        columns = engine.forward(shard.fetched(ray.get), needs)
        return _kept(columns) if engine.answers else None

    def forward_backward(self, of: str, shard: Shard, algorithm: AlgorithmConfig, keep: bool) -> "Passed":
        """See `Engine.forward_backward`; columns stay in Ray's object store."""
        engine = self._engine(of)
        keep = keep and engine.answers
        passed = engine.forward_backward(shard.fetched(ray.get), engine.of_config(algorithm), keep=keep)
        return replace(passed, columns=_kept(passed.columns))

    def connect(self, of: str, urls: list[str], num_workers: list[int], secret: str | None) -> None:
        """Opens a transport without files to these servers; `num_workers` counts the processes of each."""
        from vime.weights.sender import DirectSender

        engine = self._engine(of)
        if self._sender is not None:
            self._sender.close()
        self._sender = DirectSender(
            transport(self._config),
            lambda: self._served(engine.export()),
            engine.exported_shapes,
            urls=urls,
            num_workers=num_workers,
            secret=secret,
            rank=self._rank,
            host=self._host(),
            serving=self._config.serving,
        )

    def send_weights(self, of: str, version: int) -> WeightPayload:
        """Sends the weights over the transport that `connect` opened; rank 0 returns their description, without files."""
        self._engine(of)
        return self._sender.send(version)

    def export_weights(self, of: str, folder: Path, version: int, is_whole: bool) -> WeightPayload:
        """Writes the weights, or the adapters alone, as files into `folder`; rank 0 returns the filled payload.

        With `cluster.num_delta_syncs` they may be differences from the last ones, unless they are to be whole.
        """
        from vime.weights.export import write_adapter_payload, write_payload

        engine = self._engine(of)
        if sends_adapters(self._config):
            tensors, description = engine.export_adapter(), engine.describe_adapter()
            return write_adapter_payload(tensors, folder=folder, name=of, version=version, description=description)
        return write_payload(self._served(engine.export()), folder=folder, version=version, sent=self._sent, is_whole=is_whole)

    def export_saved(self, of: str, saved: Path, folder: Path, version: int) -> WeightPayload:
        """Writes what was saved as files into `folder`: an adapter, under the name `of`, or without it a model; no collective."""
        from vime.weights.export import copy_adapter_payload, copy_payload, saved_tensors

        if of:
            return copy_adapter_payload(saved, folder=folder, name=of, version=version)
        return copy_payload(self._served(saved_tensors(saved)), folder=folder, version=version)

    def _served(self, tensors: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The tensors of a model as its servers get them: with what quantization makes of them."""
        from vime.weights.quantize import in_four_bits, quantized

        if sends_integers(self._config):
            return quantized(tensors)
        return in_four_bits(tensors) if self._config.trainer.quantization is TrainedQuantization.int4 else tensors

    def call(self, of: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Any other method of this rank's `Engine`."""
        return getattr(self._engine(of), method)(*arguments, **options)

    def _host(self) -> str:
        """This machine's address for the other parts of the run."""
        cluster = self._config.cluster
        one_machine = cluster.num_nodes == 1 or cluster.host == LOOPBACK
        return LOOPBACK if one_machine else ray.util.get_node_ip_address()


def _kept(columns: list[Any] | None) -> list[Any] | None:
    """References to the columns of each block."""
    return None if columns is None else [ray.put(block) for block in columns]


def import_megatron(config: RunConfig | None = None) -> None:
    """Imports the engine, made to run on this device, for a run that may need Transformer Engine.

    Megatron imports wandb where it is installed, for timers that nothing here uses, and wandb makes two folders in the directory
    for temporary files, which stay behind when Ray kills the process. So wandb is hidden from it, and so is Triton if there is no
    GPU. `megatron_setup.HIDDEN` has those that it never finds.
    """
    import torch

    with _hidden("wandb"), nullcontext() if torch.cuda.is_available() else _hidden("triton"):
        from vime.trainer import megatron_setup

        megatron_setup.set_up(with_engine=config is not None and config.trainer.fp8.recipe is not Fp8Recipe.none)
        import vime.trainer.engine  # noqa: F401


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Lets imports of this module fail within the block, as if it were not installed; earlier imports of it stay valid."""
    missing = object()
    kept: Any = sys.modules.get(module, missing)
    hidden: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    hidden[module] = None
    try:
        yield
    finally:
        del sys.modules[module]
        if kept is not missing:
            sys.modules[module] = kept


def num_neighbours(config: RunConfig, rank: int) -> int:
    """Trainer ranks on the node of this one, itself included."""
    places = trainer_places(config, world_size(config.trainer))
    return sum(place.node == places[rank].node for place in places)
