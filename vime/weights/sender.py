"""Weights for the servers without files: over vLLM's `ipc` (same GPUs) and `nccl` (other GPUs), or over `gloo`.

vLLM's trainer-side engines take a `WeightSource`, open the transport and drive the servers' update; this adapts our collective
export to them. Imports vLLM only when it is used.

NCCL does not notice that the other side is gone: the sender waits, and so do the servers that are left. Therefore the servers'
health endpoints are polled meanwhile, and the transfer is aborted when a server is lost.
"""

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from vime.cluster.ports import free_port
from vime.config import ServingConfig, WeightTransfer
from vime.errors import ServerError
from vime.processes.secret import headers
from vime.weights.payload import SYNC_TIMEOUT_SECONDS, WeightDigest, WeightPayload

GLOO_POLL_SECONDS = 0.0002
"""Interval far below the time that a tensor takes."""
WATCH_SECONDS = 0.2
"""Interval between checks of the servers' health while weights are sent."""

Export = Callable[[], Iterator[tuple[str, torch.Tensor]]]
Shapes = list[tuple[str, torch.dtype, tuple[int, ...]]]


class DirectSender:
    """Sends every version of the weights straight to the servers; all methods are collectives over trainer ranks.

    `shapes` describes the tensors that `export` yields, without exporting them. `num_workers` holds the number of processes
    (GPUs) of each server in `urls`; `host` is this rank's address.
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
        """Start, transfer and finish on all servers, which then answer as `version`; describes the sent weights.

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
        """Finishes an aborted pass, because the other ranks do so too and wait in its collectives."""
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
    backend: WeightTransfer, clients: "ServerClients", source: ExportSource, *, rank: int, host: str, world_size: int
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


class ServerClients:
    """vLLM's weight-sync client for several servers at once; a call returns when all have answered, or one is lost."""

    def __init__(self, urls: list[str], num_workers: list[int], serving: ServingConfig, *, secret: str | None = None) -> None:
        self.version = 0
        self._urls, self._serving = urls, serving
        self._lost: list[str] = []
        self._losing = threading.Lock()
        self._over = threading.Event()
        self._abort: Callable[[], None] = lambda: None
        self._num_workers = num_workers
        kind = _client_with(secret)
        self._clients = [kind(url, timeout=SYNC_TIMEOUT_SECONDS) for url in urls]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Servers' workers are numbered after the trainer's sender, in the order of the addresses."""
        infos = [init_info] * len(self._clients)
        if "rank_offset" in init_info:
            before = [sum(self._num_workers[:i]) for i in range(len(self._clients))]
            infos = [init_info | {"rank_offset": init_info["rank_offset"] + count} for count in before]
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

    @contextmanager
    def watched(self, *, abort: Callable[[], None]) -> Iterator[None]:
        """Ends the transfer if a server ends or falls silent: `abort` is called, and the waiting code raises ServerError."""
        self._lost, self._over, self._abort = [], threading.Event(), abort
        watching = [threading.Thread(target=self._watch, args=(url, self._over), daemon=True) for url in self._urls]
        for thread in watching:
            thread.start()
        try:
            yield
        finally:
            self._over.set()

    def check(self) -> None:
        """Raises ServerError if a server was lost."""
        if self._lost:
            raise ServerError(self._lost[0])

    def _watch(self, url: str, over: threading.Event) -> None:
        """Polls a server's health endpoint until `over` is set; ends the transfer if `health_failures` in a row fail."""
        failures, interval = 0, self._serving.health_interval_seconds
        while not over.wait(interval) and failures < self._serving.health_failures:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=max(1.0, interval)):
                    failures = 0
            except OSError as error:
                failures += 1
                if failures == self._serving.health_failures:
                    self._lose(
                        f"{url} was lost while weights were sent: {failures} health checks in a row failed, last {error!r}"
                    )

    def _lose(self, reason: str) -> None:
        with self._losing:
            self._lost.append(reason)
            if len(self._lost) == 1:
                self._abort()

    def _all(self, method: str, arguments: list[tuple[Any, ...]]) -> None:
        pool = ThreadPoolExecutor(max_workers=len(self._clients))
        calls = {
            pool.submit(getattr(client, method), *of_client): url
            for client, of_client, url in zip(self._clients, arguments, self._urls)
        }
        pool.shutdown(wait=False)  # the call of a server that has stopped may never return
        waiting = set(calls)
        while waiting:
            done, waiting = wait(waiting, timeout=WATCH_SECONDS, return_when=FIRST_COMPLETED)
            for call in done:
                if (error := call.exception()) is not None:
                    self._lose(f"{calls[call]} failed in {method}: {error!r}")
            self.check()


def _client_with(secret: str | None) -> Any:
    """vLLM's weight-sync client, whose requests carry the run's secret."""
    import requests
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

    class Client(HTTPVLLMWeightSyncClient):
        def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
            own = headers(secret)
            requests.post(f"{self.base_url}/{path}", json=json, headers=own, timeout=self.timeout).raise_for_status()

    return Client
