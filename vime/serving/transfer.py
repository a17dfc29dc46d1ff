"""Weight transports inside a vLLM worker: from files (`shm`, or any folder), vLLM's own `ipc` and `nccl`, and `gloo`.

Each keeps the digest of what arrived, before vLLM fuses and repacks it, and hands it out through `WeightReport`.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from vime.weights import WeightDigest

NUM_HASHERS = 2
"""Hashing reads about 1 GB/s per thread."""


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Files need no meeting of the two sides."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One or more buckets. Example: `{"files": ["/dev/shm/vime-1a2b/actor-v3-0.safetensors"]}`."""

    files: list[str] = field(default_factory=list)


def repack_embeddings(model: Any) -> None:
    """Packs the weights of embedding and head again, which vLLM does for linear layers only.

    A tied head is not in the weight stream; on a CPU it multiplies by a packed copy, which would stay the old one in silence.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


class FileEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads safetensors files, mapped and not copied: from /dev/shm it is shared memory, from elsewhere a disk.

    `expect_files` maps and hashes them beside the generation that still runs, so that the pause is for loading only and wrong
    bytes are refused before anything is loaded. What was hashed is what is loaded: the mapping is kept in between.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._cores = range(os.cpu_count() or 1)
        self._hashers = ThreadPoolExecutor(
            max_workers=NUM_HASHERS, thread_name_prefix="weight-digest", initializer=_use_all_cores, initargs=(self._cores,)
        )
        self._digest = WeightDigest()
        self._hashing: list[Future[None]] = []
        self._mapped: dict[str, list[tuple[str, torch.Tensor]]] = {}

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to set up."""

    def expect_files(self, files: list[str]) -> None:
        """Begins a new digest over these buckets; raises FileNotFoundError or a safetensors error if one is not whole."""
        self._digest, self._hashing, self._mapped = WeightDigest(), [], {}
        for file in files:
            self._map(file)

    def start_weight_update(self) -> None:
        """Begins a layerwise reload."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Loads the buckets."""
        for file in update_info.files:
            if file not in self._mapped:
                self._map(file)
            load_weights: Any = self.model.load_weights
            load_weights(self._mapped.pop(file))

    def finish_weight_update(self) -> None:
        """Puts the loaded layers in place."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        repack_embeddings(self.model)

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of the tensors that arrived, or `{"pending": True}` while they are hashed."""
        if not all(hashing.done() for hashing in self._hashing):
            return {"pending": True}
        for hashing in self._hashing:
            hashing.result()
        return {"pending": False, "digest": self._digest.hexdigest(), "num_tensors": self._digest.num_tensors}

    def shutdown(self) -> None:
        """Ends the hashing threads."""
        self._hashers.shutdown(wait=False)

    def _map(self, file: str) -> None:
        with safe_open(file, framework="pt", device="cpu") as bucket:
            self._mapped[file] = [(name, bucket.get_tensor(name)) for name in bucket.keys()]  # noqa: SIM118 (it is no dictionary)
        self._hashing += [self._hashers.submit(self._digest.update, name, tensor) for name, tensor in self._mapped[file]]


class _DigestingModel:
    """Stands in for the model while an engine loads: passes everything on and hashes what goes by."""

    def __init__(self, model: Any, digest: WeightDigest) -> None:
        self._model, self._digest = model, digest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        return self._model.load_weights(self._hashed(weights))

    def _hashed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._digest.update(name, tensor)
            yield name, tensor


class _Direct(WeightTransferEngine):
    """Mixin before an engine that gets weights without files: keeps their digest, and loads files too, after a restart."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)  # pyright: ignore[reportAbstractUsage]
        self._files = FileEngine(*args)
        self._from_files = False
        self._digest = WeightDigest()

    def init_transfer_engine(self, init_info: Any) -> None:
        """Joins the trainer; a connection that was open before is closed."""
        super().shutdown()  # pyright: ignore[reportAbstractUsage]
        super().init_transfer_engine(init_info)  # pyright: ignore[reportAbstractUsage]

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        return FileUpdateInfo(**update_dict) if "files" in update_dict else super().parse_update_info(update_dict)

    def expect_files(self, files: list[str]) -> None:
        """The next update comes from files; see `FileEngine.expect_files`."""
        self._from_files = True
        self._files.expect_files(files)

    def start_weight_update(self) -> None:
        if not self._from_files:
            self._digest = WeightDigest()
        super().start_weight_update()  # pyright: ignore[reportAbstractUsage]

    def receive_weights(self, update_info: Any) -> None:
        if isinstance(update_info, FileUpdateInfo):
            self._files.receive_weights(update_info)
            return
        model = self.model
        self.model = _DigestingModel(model, self._digest)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            super().receive_weights(update_info)  # pyright: ignore[reportAbstractUsage]
        finally:
            self.model = model

    def finish_weight_update(self) -> None:
        super().finish_weight_update()  # pyright: ignore[reportAbstractUsage]
        repack_embeddings(self.model)
        self._from_files = False

    def weight_report(self) -> dict[str, Any]:
        """As `FileEngine.weight_report`, of the update that is going on or was the last."""
        if self._from_files:
            return self._files.weight_report()
        return {"pending": False, "digest": self._digest.hexdigest(), "num_tensors": self._digest.num_tensors}

    def shutdown(self) -> None:
        self._files.shutdown()
        super().shutdown()  # pyright: ignore[reportAbstractUsage]


class _Gloo(WeightTransferEngine[NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo]):
    """vLLM's broadcast transport in the simplest form, over gloo: for machines without NCCL."""

    init_info_cls = NCCLWeightTransferInitInfo
    update_info_cls = NCCLWeightTransferUpdateInfo
    _group: Any = None

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        assert init_info.master_address is not None and init_info.master_port is not None, init_info
        self._group = join_gloo(
            init_info.master_address, init_info.master_port, rank=init_info.rank_offset + worker, size=init_info.world_size
        )

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        load_weights: Any = self.model.load_weights
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(weight, 0).wait()
            load_weights([(name, weight)])

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._group = None


def join_gloo(host: str, port: int, *, rank: int, size: int) -> Any:
    """A gloo process group of its own, beside whatever groups this process is in; rank 0 is the trainer's sender."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    return stateless_init_torch_distributed_process_group(host, port, rank, size, backend="gloo")


class DigestIPCEngine(_Direct, IPCWeightTransferEngine):
    """vLLM's CUDA IPC transport, with a digest."""


class DigestNCCLEngine(_Direct, NCCLWeightTransferEngine):
    """vLLM's NCCL transport, with a digest."""


class DigestGlooEngine(_Direct, _Gloo):
    """The gloo transport, with a digest."""


class WeightReport:
    """Worker extension (`--worker-extension-cls`): what `/collective_rpc` can ask of a worker besides vLLM's own methods."""

    weight_transfer_engine: Any

    def expect_files(self, *files: str) -> None:
        """Tells the file transport which buckets come next."""
        self.weight_transfer_engine.expect_files(list(files))

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of tensors of the last weight update of this worker."""
        return self.weight_transfer_engine.weight_report()


def _use_all_cores(cores: range) -> None:
    """The worker is bound to the cores it computes on; the thread that calls this is not."""
    os.sched_setaffinity(0, cores)
