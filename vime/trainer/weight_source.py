"""Weights for the servers over vLLM's own GPU transports, `ipc` (same GPUs) and `nccl` (apart).

vLLM's trainer-side engine takes a `WeightSource`, opens the transport and drives the servers' update; this adapts our
collective export to it. Needs CUDA, and imports vLLM only when it is used.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from vime.config import WeightTransfer

Export = Callable[[], Iterator[tuple[str, torch.Tensor]]]


class DirectSender:
    """Sends every version of the weights straight to the servers; all methods are collectives over trainer ranks."""

    def __init__(
        self, backend: WeightTransfer, export: Export, *, urls: list[str], num_workers: int, rank: int, host: str, port: int
    ) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        self._clients = ServerClients(urls)
        if backend is WeightTransfer.ipc:
            init_info: Any = IPCTrainerInitInfo(packed=True, rank=rank)
        else:
            init_info = NCCLTrainerInitInfo(master_address=host, master_port=port, world_size=num_workers + 1, rank=rank)
        self._engine = WeightTransferTrainerFactory.trainer_init(init_info, client=self._clients, source=weight_source(export))

    def send(self, version: int) -> None:
        """Start, transfer and finish on all servers, which then answer as `version`."""
        self._clients.version = version
        self._engine.send_weights()


class ServerClients:
    """vLLM's weight-sync client for several servers at once; a call returns when all have answered."""

    def __init__(self, urls: list[str]) -> None:
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

        self.version = 0
        self._clients = [HTTPVLLMWeightSyncClient(url) for url in urls]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Servers are numbered after the trainer's sender in the order of their addresses."""
        offset = init_info.get("rank_offset")
        infos = [init_info if offset is None else init_info | {"rank_offset": offset + i} for i in range(len(self._clients))]
        self._all("init_weight_transfer_engine", [(info,) for info in infos])

    def start_weight_update(self) -> None:
        """Opens the update."""
        self._all("start_weight_update", [()] * len(self._clients))

    def update_weights(self, update_info: Any) -> None:
        """Loads one part."""
        self._all("update_weights", [(update_info,)] * len(self._clients))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Closes the update; vLLM's engine passes no version, so ours is used."""
        self._all("finish_weight_update", [(weight_version or str(self.version),)] * len(self._clients))

    def _all(self, method: str, arguments: list[tuple[Any, ...]]) -> None:
        with ThreadPoolExecutor(max_workers=len(self._clients)) as pool:
            list(pool.map(lambda pair: getattr(pair[0], method)(*pair[1]), zip(self._clients, arguments)))


def weight_source(export: Export) -> Any:
    """A vLLM `WeightSource` over `export()`, which yields full Hugging Face tensors in the same order each time."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class ExportSource(WeightSource):
        """Names, dtypes and shapes are learnt in one pass and kept."""

        def __init__(self) -> None:
            self._metadata: list[ParamMeta] | None = None

        def metadata(self) -> list[ParamMeta]:
            if self._metadata is None:
                self._metadata = [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in export()]
            return self._metadata

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return export()

    return ExportSource()
