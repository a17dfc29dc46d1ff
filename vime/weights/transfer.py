"""Inside a vLLM worker: weights from files (in shared memory or any folder), and the report that every transport gives on them.

A transport keeps the digest of what arrived, before vLLM fuses and repacks it, and hands it out through `WeightReport`.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
from vime.weights.repack import repack_on_cpu
from vime.weights.shadow import Shadow, can_shadow

NUM_HASHERS = 2
"""Hashing reads as fast as memory gives; noting the values that the proof will compare takes longer."""


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Empty, because a transfer by files needs no connection."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One or more buckets. Example: `{"files": ["/dev/shm/vime-1a2b/actor-v3-0.safetensors"]}`."""

    files: list[str] = field(default_factory=list)


def erase_weights(model: Any) -> None:
    """Overwrites all weights with NaN, so that one which does not arrive is noticed; see `vime.weights.erase`."""
    erase_what_is_materialized()
    erase(model)


class FileEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads safetensors files, mapped and not copied: from /dev/shm it is shared memory, from elsewhere a disk.

    `expect_files` maps and hashes them beside the generation that still runs, so that wrong bytes are refused before they
    generate. Where the model allows a shadow (`vime.weights.shadow`), it is loaded and proven meanwhile as well, and
    `finish_weight_update` only exchanges weights; elsewhere the pause is for loading. What was hashed is what is loaded: the
    mapping is kept in between.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._cores = range(os.cpu_count() or 1)
        self._hashers = ThreadPoolExecutor(
            max_workers=NUM_HASHERS, thread_name_prefix="weight-digest", initializer=_use_all_cores, initargs=(self._cores,)
        )
        self._loader = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="weight-shadow", initializer=_use_all_cores, initargs=(self._cores,)
        )
        self._loader.submit(torch.set_num_threads, len(self._cores)).result()  # now, while nothing computes
        self._digest = WeightDigest()
        self._proof = Proof()
        self._hashing: list[Future[None]] = []
        self._mapped: dict[str, list[tuple[str, torch.Tensor]]] = {}
        self._shadow: Shadow | None = None
        self._loading: Future[None] | None = None
        self._checking: Future[dict[str, Any]] | None = None
        self._products_seconds = 0.0

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to set up."""

    def expect_files(self, files: list[str]) -> None:
        """Begins a new digest over these buckets; without any, it drops those that were expected.

        Raises FileNotFoundError or a safetensors error if one is not whole.
        """
        self._digest, self._hashing, self._mapped = WeightDigest(), [], {}
        self._shadow, self._loading, self._checking = None, None, None
        self._proof.begin()
        for file in files:
            self._mapped[file] = _map(file)
        tensors = [named for file in files for named in self._mapped[file]]
        if files and can_shadow(self.model, self.vllm_config, num_bytes=sum(tensor.nbytes for _, tensor in tensors)):
            self._shadow = Shadow(self.model)
        target = self._shadow.model if self._shadow else self.model
        self._hashing = [self._hashers.submit(self._note, target, name, tensor) for name, tensor in tensors]
        if self._shadow:
            self._loading = self._loader.submit(self._load_shadow, self._shadow)

    def start_weight_update(self) -> None:
        """Overwrites the weights with NaN, and prepares vLLM to load new ones layer by layer; every weight must be sent.

        With a shadow there is nothing to do.
        """
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self._shadow is not None:
            return
        erase_weights(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Loads the buckets."""
        if self._shadow is not None:
            return
        for file in update_info.files:
            self._load(file, self.model)

    def finish_weight_update(self) -> None:
        """Puts the loaded layers in place."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._shadow is not None:
            wait([self._begin_check(self._shadow)])  # it compares the shadow's layers
            self._shadow.exchange()
            self._loader.submit(self._shadow.release)  # giving memory back takes time, too
            self._shadow = None
            return
        finalize_layerwise_reload(self.model, self.model_config)
        repack_on_cpu(self.model)

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of the tensors that arrived, or `{"pending": True}` while they are hashed or a shadow is loaded.

        `is_loaded` says that a shadow holds them.
        """
        works = [*self._hashing, *filter(None, [self._loading])]
        if not all(work.done() for work in works):
            return {"pending": True}
        for work in works:
            work.result()
        report = {"digest": self._digest.hexdigest(), "num_tensors": self._digest.num_tensors}
        return {"pending": False, "is_loaded": self._loading is not None, **report}

    def prove(self) -> dict[str, Any]:
        """See `Proof.check`; of a shadow `{"pending": True}` while it is compared, before the exchange and beside the generation.

        `products_seconds` is the time for which a server that is not paused has computed nothing else.
        """
        if self._shadow is not None:
            self._begin_check(self._shadow)
        if self._checking is None:
            return {"pending": False, "products_seconds": 0.0, **self._proof.check(self.model)}
        if not self._checking.done():
            return {"pending": True}
        return {"pending": False, "products_seconds": self._products_seconds, **self._checking.result()}

    def shutdown(self) -> None:
        """Ends the threads."""
        self._hashers.shutdown(wait=False)
        self._loader.shutdown(wait=False)

    def _begin_check(self, shadow: Shadow) -> Future[dict[str, Any]]:
        """The check of a shadow, begun once; its products are computed here, because the model must not multiply meanwhile."""
        if self._checking is None:
            self._products_seconds = self._proof.multiply(shadow.model)
            self._checking = self._loader.submit(self._proof.check, shadow.model)
        return self._checking

    def _note(self, model: Any, name: str, tensor: torch.Tensor) -> None:
        self._digest.update(name, tensor)
        self._proof.note(model, name, tensor)

    def _load(self, file: str, model: Any) -> None:
        model.load_weights(self._mapped.pop(file, None) or _map(file))

    def _load_shadow(self, shadow: Shadow) -> None:
        """Loads the shadow with all that is mapped."""
        with torch.no_grad():
            for file in list(self._mapped):
                self._load(file, shadow.model)
            shadow.finish(self.model_config)
            wait(self._hashing)


class WeightReport:
    """Worker extension (`--worker-extension-cls`): the methods that `/collective_rpc` can call besides vLLM's own."""

    weight_transfer_engine: Any

    def expect_files(self, *files: str) -> None:
        """Tells the file transport which buckets come next; none, if those it was told of do not come after all."""
        self.weight_transfer_engine.expect_files(list(files))

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of tensors of the last weight update of this worker."""
        return self.weight_transfer_engine.weight_report()

    def weight_proof(self) -> dict[str, Any]:
        """Compares the weights that the layers compute with to those that were sent; see `Proof.check`."""
        return self.weight_transfer_engine.prove()


def _map(file: str) -> list[tuple[str, torch.Tensor]]:
    with safe_open(file, framework="pt", device="cpu") as bucket:
        return [(name, bucket.get_tensor(name)) for name in bucket.keys()]  # noqa: SIM118 (it is no dictionary)


def _use_all_cores(cores: range) -> None:
    """Lets the calling thread run on all cores, although the worker is bound to some."""
    os.sched_setaffinity(0, cores)
