"""Weights for the servers without files: over vLLM's `ipc` (same GPUs) and `nccl` (other GPUs), or over `gloo`.

vLLM's trainer-side engines take a `WeightSource`, open the transport and drive the servers' update; this adapts our collective
export to them. Imports vLLM only when it is used.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from vime.cluster.ports import free_port
from vime.config import ServingConfig, WeightTransfer
from vime.weights.payload import WeightDigest, WeightPayload
from vime.weights.server_clients import ServerClients

GLOO_POLL_SECONDS = 0.0002
"""Far below what a tensor takes."""

Export = Callable[[], Iterator[tuple[str, torch.Tensor]]]
Shapes = list[tuple[str, torch.dtype, tuple[int, ...]]]


class DirectSender:
    """Sends every version of the weights straight to the servers; all methods are collectives over trainer ranks.

    `shapes` tells what `export` yields without exporting it. `num_workers` holds the number of processes (GPUs) of each server in
    `urls`; `host` is this rank's address.
    """

    def __init__(
        self,
        backend: WeightTransfer,
        export: Export,
        shapes: Callable[[], Shapes],
        *,
        urls: list[str],
        num_workers: list[int],
        rank: int,
        host: str,
        serving: ServingConfig,
        secret: str | None = None,
    ) -> None:
        self._clients = ServerClients(urls, num_workers, serving, secret=secret)
        self._is_sender = rank == 0
        self._source = ExportSource(export, shapes, to_host=backend is WeightTransfer.gloo)
        self._engine = _trainer_engine(
            backend, self._clients, self._source, rank=rank, host=host, world_size=1 + sum(num_workers)
        )

    def send(self, version: int) -> WeightPayload:
        """Start, transfer and finish on all servers, which then answer as `version`; describes what was sent.

        Raises ServerError as soon as a server is lost: its place in the transport stays empty, and the others would wait for it.
        """
        started = time.monotonic()
        self._clients.version = version
        try:
            with self._clients.watched(abort=self._abort) if self._is_sender else nullcontext():
                self._engine.send_weights()
        except BaseException:  # the pass is over whatever ended it, an interrupt too
            self._source.finish_pass()
            raise
        digest = self._source.digest
        return WeightPayload(
            version=version,
            num_tensors=digest.num_tensors,
            num_bytes=self._source.num_bytes,
            digest=digest.hexdigest(),
            export_seconds=time.monotonic() - started,
        )

    def close(self) -> None:
        """Leaves the process group of trainer and servers."""
        self._engine.shutdown()

    def _abort(self) -> None:
        """Ends NCCL's calls that wait for the lost server; gloo's are asked whether there is one."""
        group: Any = getattr(self._engine, "model_update_group", None)
        if hasattr(group, "destroy"):
            group.destroy()


class ExportSource:
    """`export()`, which yields full Hugging Face tensors in the same order each time, with a digest of the last pass.

    With `to_host` the digest is that of the tensors in host memory, which is where they arrive.
    """

    def __init__(self, export: Export, shapes: Callable[[], Shapes], *, to_host: bool = False) -> None:
        self._export, self._shapes, self._to_host = export, shapes, to_host
        self._metadata: Shapes | None = None
        self._passing: Iterator[tuple[str, torch.Tensor]] = iter(())
        self.digest = WeightDigest()
        self.num_bytes = 0

    def metadata(self) -> Shapes:
        """Name, dtype and shape of every tensor, asked for once and kept."""
        if self._metadata is None:
            self._metadata = self._shapes()
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.digest, self.num_bytes = WeightDigest(), 0
        self._passing = self._export()
        for name, tensor in self._passing:
            self.digest.update(name, tensor.cpu() if self._to_host else tensor)
            self.num_bytes += tensor.nbytes
            yield name, tensor

    def finish_pass(self) -> None:
        """Finishes a pass that was broken off, because the other ranks do so too and wait in its collectives."""
        for _ in self._passing:
            pass

    def for_vllm(self) -> Any:
        """Returns this source as vLLM's `WeightSource`."""
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

        own = self

        class Source(WeightSource):
            def metadata(self) -> list[ParamMeta]:
                return [ParamMeta(*entry) for entry in own.metadata()]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(own)

        return Source()


def _trainer_engine(
    backend: WeightTransfer, clients: ServerClients, source: ExportSource, *, rank: int, host: str, world_size: int
) -> Any:
    """vLLM's trainer-side engine; rank 0 meets the servers' workers at a free port of its machine."""
    if backend is WeightTransfer.ipc:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

        largest = max(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in source.metadata())
        buffer = max(IPCTrainerInitInfo.packed_buffer_size_bytes, largest)
        info = IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=buffer, rank=rank)
        return IPCTrainerWeightTransferEngine.trainer_init(info, client=clients, source=source.for_vllm())
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    port = free_port(host, 0) if rank == 0 else 0
    packed = backend is WeightTransfer.nccl
    info = NCCLTrainerInitInfo(master_address=host, master_port=port, world_size=world_size, packed=packed, rank=rank)
    kind = NCCLTrainerWeightTransferEngine if packed else _gloo_engine()
    return kind.trainer_init(info, client=clients, source=source.for_vllm())


def _gloo_engine() -> Any:
    """vLLM's trainer-side broadcast with gloo in the place of NCCL."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    class GlooTrainerEngine(NCCLTrainerWeightTransferEngine):
        @classmethod
        def trainer_init(cls, init_info: NCCLTrainerInitInfo, *, client: Any, source: Any = None) -> "GlooTrainerEngine":
            engine = cls(client=client, source=source, is_sender=init_info.is_sender, packed=False)
            if engine.is_sender:
                host, port, size = init_info.master_address, init_info.master_port, init_info.world_size
                info = NCCLWeightTransferInitInfo(master_address=host, master_port=port, rank_offset=1, world_size=size)
                with ThreadPoolExecutor(max_workers=1) as pool:
                    joining = pool.submit(client.init_weight_transfer_engine, worker_init_payload(info))
                    join: Any = stateless_init_torch_distributed_process_group
                    engine.model_update_group = join(host, port, 0, size, backend="gloo")
                    joining.result()
            return engine

        def _broadcast(self, source: Any, meta: Any) -> None:
            group: Any = self.model_update_group
            clients: Any = self.client
            for _, tensor in self._checked_iter(source, meta) if self.is_sender else source:
                if self.is_sender:
                    sending = group.broadcast(tensor.contiguous(), 0)
                    while not sending.is_completed():
                        clients.check()
                        time.sleep(GLOO_POLL_SECONDS)
                    sending.wait()

        def shutdown(self) -> None:
            self.model_update_group = None

    return GlooTrainerEngine
