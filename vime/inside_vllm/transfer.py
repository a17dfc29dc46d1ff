"""Weights from files (in shared memory or any folder), and the report that every transport gives on them.

A transport keeps the digest of the tensors that arrived, before vLLM fuses and repacks them, and hands it out through
`WeightReport`.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vime.inside_vllm import early_exit
from vime.inside_vllm.adapter import SentAdapter, check_all, sent_adapter
from vime.inside_vllm.erase import erase, erase_what_is_materialized
from vime.inside_vllm.proof import Proof
from vime.inside_vllm.repack import repack_on_cpu
from vime.inside_vllm.shadow import Shadow, can_shadow
from vime.inside_vllm.stacked_experts import loadable
from vime.machine import num_cores
from vime.weights.delta import Buckets, read_bucket
from vime.weights.payload import LacksBase, WeightDigest
from vime.weights.update import LACKS

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
    """Overwrites all weights with NaN, so that a missing weight is noticed; see `vime.inside_vllm.erase`."""
    erase_what_is_materialized()
    erase(model)


class Target:
    """A model that takes the weights of each version: the served one, or the draft that is its first `num_layers` layers."""

    def __init__(self, model: Any, model_config: Any, *, num_layers: int | None = None) -> None:
        self.model, self.model_config, self._num_layers = model, model_config, num_layers
        self.proof = Proof()

    def takes(self, name: str) -> bool:
        """True if the model has the tensor of this name."""
        return self._num_layers is None or early_exit.is_drafts(name, num_layers=self._num_layers)


@dataclass(kw_only=True, slots=True)
class Arrival:
    """The part of one version that has arrived so far.

    Example: `Arrival(digest=WeightDigest(), mapped={"…/actor-v3-0.safetensors": [("lm_head.weight", …)]}, whole=…)`.
    """

    digest: WeightDigest = field(default_factory=WeightDigest)
    mapped: dict[str, list[tuple[str, torch.Tensor]]] = field(default_factory=dict)
    """The tensors of each bucket that is not loaded yet."""
    adapter: SentAdapter | None = None
    """The adapter, if the weights of this run's versions are one."""
    shadows: list[Shadow] = field(default_factory=list)
    """The shadow of each model's layers, until their weights are exchanged."""
    is_loaded: bool = False
    """True if the new weights are loaded beside the old ones."""
    buckets: Buckets | None = None
    """Its bytes, if the next version may come as a difference from them."""
    lacks: str = ""
    """The reason why the version cannot be made of its difference."""
    whole: Future[None] | None = None
    """Done once all of it is hashed, and loaded into the shadow if there is one."""


class FileEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads safetensors files, mapped and not copied: from /dev/shm it is shared memory, from elsewhere a disk.

    `expect_files` has them mapped and hashed beside the generation that still runs, so that wrong bytes are refused before they
    generate. Where the model allows a shadow (`vime.inside_vllm.shadow`), it is loaded and proven meanwhile as well, and
    `finish_weight_update` only exchanges weights; elsewhere the pause is for loading. The hashed bytes are the loaded ones: the
    mapping is kept in between.
    """

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        cores = range(os.cpu_count() or 1)
        self._hashers = ThreadPoolExecutor(
            max_workers=NUM_HASHERS, thread_name_prefix="weight-digest", initializer=_use_all_cores, initargs=(cores,)
        )
        self._loader = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="weight-loader", initializer=_use_all_cores, initargs=(cores,)
        )
        # Half of ours: generation goes on beside it, and threads that share a core wait long for each other.
        self._loader.submit(torch.set_num_threads, max(num_cores() // 2, 1)).result()  # now, while nothing computes
        self._targets = [Target(self.model, self.model_config)]
        self._arrival = Arrival()
        self._held: Buckets | None = None
        """The present version's bytes, where the next one may come as a difference from them."""
        self._adapters: dict[int, SentAdapter] = {}
        """The adapters of the present versions, by their numbers."""
        self._checking: Future[dict[str, Any]] | None = None
        self._products_seconds = 0.0

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Does nothing, because files need no set-up."""

    def expect_files(self, files: list[str], draft: Any = None) -> None:
        """Begins to take in these buckets, and returns at once; without any, it drops those that were expected.

        `draft` is the model that drafts, if it takes the weights as well. If a bucket is not whole, `weight_report` raises
        FileNotFoundError or a safetensors error.
        """
        if draft is not None and len(self._targets) == 1:
            speculative: Any = self.vllm_config.speculative_config
            config = speculative.draft_model_config
            self._targets.append(Target(draft, config, num_layers=config.hf_config.num_hidden_layers))
        self._arrival, self._checking = Arrival(), None
        if files:
            self._arrival.whole = self._loader.submit(self._take_in, self._arrival, files)

    def start_weight_update(self) -> None:
        """Overwrites the weights with NaN, and prepares vLLM to load new ones layer by layer; every weight must be sent.

        With a shadow there is nothing to do.
        """
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self._arrival.shadows or self._arrival.adapter:
            return
        for target in self._targets:
            erase_weights(target.model)
            initialize_layerwise_reload(target.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Loads the buckets."""
        if self._arrival.shadows or self._arrival.adapter:
            return
        for file in update_info.files:
            self._load(self._arrival, file)

    def finish_weight_update(self) -> None:
        """Puts the loaded layers in place."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self._held = self._arrival.buckets
        if self._arrival.adapter:
            return
        if shadows := self._arrival.shadows:
            wait([self._begin_check()])  # it compares the shadows' layers
            for shadow in shadows:
                shadow.exchange()
            for shadow in shadows:
                self._loader.submit(shadow.release)  # giving memory back takes time, too
            self._arrival.shadows = []
            return
        for target in self._targets:
            finalize_layerwise_reload(target.model, target.model_config)
            repack_on_cpu(target.model)

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of the tensors that arrived, or `{"pending": True}` while they are hashed or a shadow is loaded.

        `is_loaded` says that they were loaded beside the old weights. Raises the error of the work in between.
        """
        arrival = self._arrival
        if arrival.whole is not None:
            if not arrival.whole.done():
                return {"pending": True}
            arrival.whole.result()
        if arrival.lacks:
            return {"pending": False, LACKS: arrival.lacks}
        report = {"digest": arrival.digest.hexdigest(), "num_tensors": arrival.digest.num_tensors}
        return {"pending": False, "is_loaded": arrival.is_loaded, **report}

    def prove(self) -> dict[str, Any]:
        """See `Proof.check`; `{"pending": True}` while a shadow is compared, before the exchange and beside the generation.

        Adapters are loaded here, those of other names too, because vLLM drops all at the end of a weight update.
        `products_seconds` is the time for which a server that is not paused has computed nothing else.
        """
        if adapter := self._arrival.adapter:
            self._adapters[adapter.number] = adapter
            for each in self._adapters.values():
                each.load(self.model, self.vllm_config)
            return {"pending": False, "products_seconds": 0.0, **check_all(self._adapters.values(), self.model)}
        if self._arrival.shadows:
            self._begin_check()
        if self._checking is None:
            return {"pending": False, "products_seconds": 0.0, **self._check(self._loading(self._arrival))}
        if not self._checking.done():
            return {"pending": True}
        return {"pending": False, "products_seconds": self._products_seconds, **self._checking.result()}

    def shutdown(self) -> None:
        """Ends the threads."""
        self._hashers.shutdown(wait=False)
        self._loader.shutdown(wait=False)

    def _loading(self, arrival: Arrival) -> list[tuple[Target, Any]]:
        """Each target with the layers that take its weights: its model's own, or their shadow's."""
        models = [shadow.model for shadow in arrival.shadows] or [target.model for target in self._targets]
        return list(zip(self._targets, models, strict=True))

    def _begin_check(self) -> Future[dict[str, Any]]:
        """The check of shadows, begun once; its products are computed here, because the model must not multiply meanwhile."""
        if self._checking is None:
            loading = self._loading(self._arrival)
            self._products_seconds = sum(target.proof.multiply(model) for target, model in loading)
            self._checking = self._loader.submit(self._check, loading)
        return self._checking

    def _check(self, loading: list[tuple[Target, Any]]) -> dict[str, Any]:
        """See `Proof.check`, of the model and its draft."""
        found = [target.proof.check(model) for target, model in loading]
        for of_draft in found[1:]:
            of_draft["wrong"] = [f"the draft's {line}" for line in of_draft["wrong"]]
            of_draft["unread"] = [f"the draft's {name}" for name in of_draft["unread"]]
            for key, value in of_draft.items():
                found[0][key] += value
        return found[0]

    def _take_in(self, arrival: Arrival, files: list[str]) -> None:
        """Maps and hashes the files and, if the models can have shadows, loads these; in the loader's thread, in turn."""
        for target in self._targets:
            target.proof.begin()
        try:
            for file in files:
                arrival.mapped[file], arrival.buckets = read_bucket(file, self._held, arrival.buckets)
        except LacksBase as lacking:
            arrival.lacks = str(lacking)
            return
        tensors = [named for of_file in arrival.mapped.values() for named in of_file]
        if adapter := sent_adapter(files, dict(tensors)):
            arrival.adapter = adapter
            for name, tensor in tensors:
                arrival.digest.update(name, tensor)
            return
        if self._can_shadow(tensors):
            arrival.shadows = [Shadow(target.model) for target in self._targets]
        loading = self._loading(arrival)
        hashing = [self._hashers.submit(self._note, arrival.digest, loading, name, tensor) for name, tensor in tensors]
        try:
            if arrival.shadows:
                with torch.no_grad():
                    for file in files:
                        self._load(arrival, file)
                    for target, shadow in zip(self._targets, arrival.shadows, strict=True):
                        shadow.finish(target.model_config)
                arrival.is_loaded = True
        finally:
            wait(hashing)
        for work in hashing:
            work.result()

    def _can_shadow(self, tensors: list[tuple[str, torch.Tensor]]) -> bool:
        """True if all models can have a shadow, and there is room for them together."""
        num_bytes = sum(tensor.nbytes for name, tensor in tensors for target in self._targets if target.takes(name))
        return all(can_shadow(target.model, self.vllm_config, num_bytes=num_bytes) for target in self._targets)

    def _note(self, digest: WeightDigest, loading: list[tuple[Target, Any]], name: str, tensor: torch.Tensor) -> None:
        digest.update(name, tensor)
        for target, model in loading:
            if target.takes(name):
                target.proof.note(model, name, tensor)

    def _load(self, arrival: Arrival, file: str) -> None:
        tensors = arrival.mapped.pop(file, None) or read_bucket(file, None, None)[0]
        for target, model in self._loading(arrival):
            model.load_weights(loadable(model, [(name, tensor) for name, tensor in tensors if target.takes(name)]))


class WeightReport:
    """Worker extension (`--worker-extension-cls`): the methods that `/collective_rpc` can call besides vLLM's own."""

    weight_transfer_engine: Any
    get_draft_model: Any

    def expect_files(self, *files: str) -> None:
        """Tells the file transport which buckets come next; without arguments, the announced ones will not come after all."""
        draft = self.get_draft_model() if early_exit.wanted() else None
        self.weight_transfer_engine.expect_files(list(files), draft)

    def weight_report(self) -> dict[str, Any]:
        """Digest and number of tensors of the last weight update of this worker."""
        return self.weight_transfer_engine.weight_report()

    def weight_proof(self) -> dict[str, Any]:
        """Compares the weights that the layers compute with to those that were sent; see `Proof.check`."""
        return self.weight_transfer_engine.prove()


def _use_all_cores(cores: range) -> None:
    """Lets the calling thread run on all cores, although the worker is bound to some."""
    os.sched_setaffinity(0, cores)
