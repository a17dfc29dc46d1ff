"""Inside a vLLM worker: weights from files (in shared memory or any folder), and the report that every transport gives on them.

A transport keeps the digest of what arrived, before vLLM fuses and repacks it, and hands it out through `WeightReport`.
"""

import os
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

from vime.weights.erase import erase, erase_what_is_materialized
from vime.weights.payload import WeightDigest
from vime.weights.proof import Proof

NUM_HASHERS = 2
"""Hashing reads as fast as memory gives; noting the values that the proof will compare takes longer."""


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Empty, because a transfer by files needs no connection."""


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


def repack_experts(model: Any) -> None:
    """Packs the experts' weights again: on a CPU vLLM does so when it starts, but not when weights are loaded later."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, RoutedExperts) and (kernel := getattr(module.quant_method, "moe_kernel", None)) is not None:
            kernel.fused_experts.process_weights_after_loading(module)


def repack_on_cpu(model: Any) -> None:
    """Packs again everything that vLLM does not pack after an update."""
    repack_embeddings(model)
    repack_experts(model)


def erase_weights(model: Any) -> None:
    """Overwrites all weights with NaN, so that one which does not arrive is noticed; see `vime.weights.erase`."""
    erase_what_is_materialized()
    erase(model)


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
        self.proof = Proof()
        self._hashing: list[Future[None]] = []
        self._mapped: dict[str, list[tuple[str, torch.Tensor]]] = {}

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to set up."""

    def expect_files(self, files: list[str]) -> None:
        """Begins a new digest over these buckets; raises FileNotFoundError or a safetensors error if one is not whole."""
        self._digest, self._hashing, self._mapped = WeightDigest(), [], {}
        self.proof.begin()
        for file in files:
            self._map(file)

    def start_weight_update(self) -> None:
        """Overwrites the weights with NaN, and prepares vLLM to load new ones layer by layer; every weight must be sent."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        erase_weights(self.model)
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
        repack_on_cpu(self.model)

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
        self._hashing += [self._hashers.submit(self._note, name, tensor) for name, tensor in self._mapped[file]]

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self._digest.update(name, tensor)
        self.proof.note(self.model, name, tensor)


class WeightReport:
    """Worker extension (`--worker-extension-cls`): the methods that `/collective_rpc` can call besides vLLM's own."""

    weight_transfer_engine: Any

    def expect_files(self, *files: str) -> None:
        """Tells the file transport which buckets come next."""
        self.weight_transfer_engine.expect_files(list(files))

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of tensors of the last weight update of this worker."""
        return self.weight_transfer_engine.weight_report()

    def weight_proof(self) -> dict[str, Any]:
        """Compares the weights that the layers compute with to those that were sent; see `Proof.check`."""
        engine = self.weight_transfer_engine
        return engine.proof.check(engine.model)


def _use_all_cores(cores: range) -> None:
    """Lets the calling thread run on all cores, although the worker is bound to some."""
    os.sched_setaffinity(0, cores)
