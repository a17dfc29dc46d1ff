"""The trainer's side of the servers' weight-sync endpoints, and the watch over the servers while weights are sent.

NCCL does not notice that the other side is gone: the sender waits, and so do the servers that are left. Therefore the servers'
health endpoints are polled meanwhile, and the transfer is broken off when a server is lost.
"""

import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from vime.config import ServingConfig
from vime.errors import ServerError
from vime.processes.secret import headers
from vime.weights.payload import SYNC_TIMEOUT_SECONDS

POLL_SECONDS = 0.2


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
        """Inside, a server that ends or falls silent ends the transfer: `abort` is called, and what waits raises ServerError."""
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
            done, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
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
