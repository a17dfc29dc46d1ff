"""A transfer whose transport waits for ever, as NCCL does: that a server is lost ends it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from vime.config import ServingConfig
from vime.errors import ServerError
from vime.weights.sender import ServerClients

QUICK = ServingConfig(health_interval_seconds=0.05, health_failures=3)


class Control(BaseHTTPRequestHandler):
    """A server's endpoints: one that is well never ends an update, since it waits for the others."""

    server: Any

    def do_GET(self) -> None:
        self.send_response(200 if self.server.is_well else 503)
        self.end_headers()

    def do_POST(self) -> None:
        self.server.over.wait()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    made: list[Any] = []
    for _ in range(2):
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Control)
        server.daemon_threads, server.is_well, server.over = True, True, threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.append(server)
    yield made
    for server in made:
        server.over.set()
        server.shutdown()


def transfer(servers: list[Any], lose: Any) -> None:
    """Sends as the NCCL engine does: the servers' calls beside, and a broadcast that only an abort ends."""
    urls = [f"http://127.0.0.1:{server.server_port}" for server in servers]
    clients, aborted = ServerClients(urls, [1, 1], QUICK), threading.Event()

    def call() -> None:
        with pytest.raises(ServerError):
            clients.update_weights({})

    with clients.watched(abort=aborted.set):
        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        lose()
        aborted.wait()
        calling.join()
        clients.check()


def test_a_server_that_falls_silent_ends_the_transfer_and_is_named(servers: list[Any]):
    url = f"http://127.0.0.1:{servers[1].server_port}"
    with pytest.raises(ServerError, match=f"{url} was lost while weights were sent: 3 health checks in a row failed"):
        transfer(servers, lambda: setattr(servers[1], "is_well", False))


def test_a_server_whose_call_fails_ends_the_transfer_of_all(servers: list[Any]):
    with pytest.raises(ServerError, match=f"{servers[0].server_port} failed in update_weights"):
        transfer(servers, servers[0].over.set)  # it closes the connection without an answer
