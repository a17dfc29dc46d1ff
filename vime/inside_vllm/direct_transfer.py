"""Weights without files, by vLLM's own `ipc` and `nccl` transports and by `gloo`, with a digest.

After a restart a server gets its weights as files, so each of them loads files too.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from vime.inside_vllm.proof import Proof
from vime.inside_vllm.repack import repack_on_cpu
from vime.inside_vllm.stacked_experts import loadable
from vime.inside_vllm.transfer import FileEngine, FileUpdateInfo, erase_weights
from vime.weights.payload import WeightDigest


class _DigestingModel:
    """Replaces the model while an engine loads: passes each tensor on, hashes it and keeps some of its values."""

    def __init__(self, model: Any, digest: WeightDigest, proof: Proof) -> None:
        self._model, self._digest, self._proof = model, digest, proof

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        return self._model.load_weights(loadable(self._model, self._hashed(weights)))

    def _hashed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._digest.update(name, tensor)
            self._proof.note(self._model, name, tensor)
            yield name, tensor


class _Direct(WeightTransferEngine):
    """Mixin before an engine that gets weights without files: keeps their digest, and loads files too, after a restart."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)  # pyright: ignore[reportAbstractUsage]
        self._files = FileEngine(*args)
        self._from_files = False
        self._digest = WeightDigest()
        self._proof = Proof()
        self._proves_files = False
        """True if the last update was from files."""

    def init_transfer_engine(self, init_info: Any) -> None:
        """Joins the trainer's transport, and closes an earlier connection."""
        super().shutdown()  # pyright: ignore[reportAbstractUsage]
        super().init_transfer_engine(init_info)  # pyright: ignore[reportAbstractUsage]

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        return FileUpdateInfo(**update_dict) if "files" in update_dict else super().parse_update_info(update_dict)

    def expect_files(self, files: list[str], draft: Any = None) -> None:
        """The next update comes from files; see `FileEngine.expect_files`."""
        self._from_files = self._proves_files = bool(files)
        self._files.expect_files(files, draft)

    def start_weight_update(self) -> None:
        self._proves_files = self._from_files
        if self._from_files:
            self._files.start_weight_update()
            return
        self._digest = WeightDigest()
        self._proof.begin()
        erase_weights(self.model)
        super().start_weight_update()  # pyright: ignore[reportAbstractUsage]

    def receive_weights(self, update_info: Any) -> None:
        if isinstance(update_info, FileUpdateInfo):
            self._files.receive_weights(update_info)
            return
        model = self.model
        self.model = _DigestingModel(model, self._digest, self._proof)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            super().receive_weights(update_info)  # pyright: ignore[reportAbstractUsage]
        finally:
            self.model = model

    def finish_weight_update(self) -> None:
        if self._from_files:
            self._files.finish_weight_update()
            self._from_files = False
            return
        super().finish_weight_update()  # pyright: ignore[reportAbstractUsage]
        repack_on_cpu(self.model)

    def weight_report(self) -> dict[str, Any]:
        """Like `FileEngine.weight_report`, for the present update or the last one."""
        if self._from_files:
            return self._files.weight_report()
        return {
            "pending": False,
            "is_loaded": False,
            "digest": self._digest.hexdigest(),
            "num_tensors": self._digest.num_tensors,
        }

    def prove(self) -> dict[str, Any]:
        """Like `FileEngine.prove`, for the last update."""
        if self._proves_files:
            return self._files.prove()
        return {"pending": False, "products_seconds": 0.0, **self._proof.check(self.model)}

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
        self._group = stateless_init_torch_distributed_process_group(
            init_info.master_address,
            init_info.master_port,
            init_info.rank_offset + worker,
            init_info.world_size,
            backend="gloo",
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


class DigestIPCEngine(_Direct, IPCWeightTransferEngine):
    """vLLM's CUDA IPC transport, with a digest."""


class DigestNCCLEngine(_Direct, NCCLWeightTransferEngine):
    """vLLM's NCCL transport, with a digest."""


class DigestGlooEngine(_Direct, _Gloo):
    """The gloo transport, with a digest."""
