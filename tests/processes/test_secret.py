"""Beyond the loopback nothing answers without the run's secret: servers, router, retrieval; and the secret is shown nowhere."""

import asyncio
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest

from vime.config import RunConfig, ServingConfig
from vime.errors import describe
from vime.preflight.compose import compose_run
from vime.preflight.rules.security import arguments, reachable
from vime.processes.program import LISTEN, PORT, ProgramSpec
from vime.processes.secret import VARIABLE, RequireSecret, headers, is_authorized, is_loopback, run_secret
from vime.serving.endpoint import Endpoint
from vime.serving.server import Server
from vime.serving.topology import Serving

SERVER_PATHS = ("/collective_rpc", "/update_weights", "/pause?mode=keep", "/v1/completions", "/inference/v1/generate", "/metrics")
ROUTER_PATHS = ("/inference/v1/generate", "/v1/completions", "/add_worker?url=http://127.0.0.1:9", "/list_workers", "/liveness")
GETS = ("/metrics", "/list_workers", "/liveness")
LONG = "a-secret-of-enough-characters"


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


async def statuses(url: str, paths: tuple[str, ...], secret: str | None) -> dict[str, int]:
    """The status of a server's answer by path."""
    body = {"model": "actor", "prompt": "a", "token_ids": [1], "sampling_params": {"max_tokens": 1}, "method": "check_health"}
    found = {}
    async with aiohttp.ClientSession(headers=headers(secret)) as session:
        for path in paths:
            call = session.get(url + path) if path in GETS else session.post(url + path, json=body)
            async with call as response:
                found[path] = response.status
    return found


async def test_real_servers_and_their_router_answer_nothing_without_the_secret(served: dict[str, Any]):
    endpoint = served["untied"].endpoint
    for url, paths in ((endpoint.worker_urls[0], SERVER_PATHS), (endpoint.url, ROUTER_PATHS)):
        for wrong in (None, "wrong", endpoint.secret[:-1], f"{endpoint.secret}x"):
            assert set((await statuses(url, paths, wrong)).values()) == {401}, (url, wrong)
    async with aiohttp.ClientSession() as session, session.get(f"{endpoint.worker_urls[0]}/health") as response:
        assert response.status == 200


async def test_real_servers_and_their_router_serve_with_the_secret(served: dict[str, Any]):
    endpoint = served["untied"].endpoint
    right = ("/collective_rpc", "/inference/v1/generate", "/metrics")
    assert set((await statuses(endpoint.worker_urls[0], right, endpoint.secret)).values()) == {200}
    right = ("/inference/v1/generate", "/list_workers", "/liveness")
    assert set((await statuses(endpoint.url, right, endpoint.secret)).values()) == {200}


async def test_the_secret_is_on_no_command_line_and_in_no_log(served: dict[str, Any]):
    stack = served["untied"]
    secret = stack.endpoint.secret
    actors = [program.actor for program in stack.serving.programs()]
    pids = await asyncio.gather(*[actor.pid.remote() for actor in actors])
    trees = [process for pid in pids for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    assert len(trees) > 2 * len(pids)
    assert not any(secret in " ".join(process.cmdline()) for process in trees)
    files = [path for path in Path(stack.serving._run_dir).rglob("*") if path.is_file()]
    assert len(files) >= len(pids)
    assert not any(secret.encode() in path.read_bytes() for path in files)


def test_what_carries_the_secret_does_not_show_it():
    spec = ProgramSpec(name="actor-0", address="10.0.0.7", port=1, command=[], log="", secret=LONG)
    endpoint = Endpoint(name="actor", url="", worker_urls=(), model="", tokenizer="", max_model_len=1, trained=True, secret=LONG)
    assert LONG not in f"{spec!r} {endpoint!r} {replace(endpoint, url='http://a')!r}"


async def test_an_error_of_a_request_is_described_without_its_headers():
    request = aiohttp.RequestInfo(url=None, method="GET", headers=headers(LONG), real_url="http://a")  # type: ignore[arg-type]
    error = aiohttp.ContentTypeError(request, (), status=200, message="unexpected mimetype")
    assert LONG in repr(error), "which is why"
    assert LONG not in describe(error) and "unexpected mimetype" in describe(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_the_loopback_no_secret_is_needed(host: str):
    assert is_loopback(host) and run_secret(host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "node-3"])
def test_beyond_the_loopback_each_run_has_its_own(host: str):
    assert not is_loopback(host)
    first, second = run_secret(host), run_secret(host)
    assert first and second and first != second and len(first) > 40


def test_a_given_secret_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, LONG)
    assert run_secret("127.0.0.1") == run_secret("0.0.0.0") == LONG


def test_only_the_whole_secret_opens():
    assert is_authorized(f"Bearer {LONG}", LONG)
    wrong = ["", LONG, f"bearer {LONG}", f"Bearer {LONG} ", f"Bearer {LONG[:-1]}", "Bearer ", "Bearer ä"]
    assert not any(is_authorized(header, LONG) for header in wrong)


async def answers(scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Messages of the middleware before an application that answers 200."""
    monkeypatch.setenv(VARIABLE, LONG)
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await RequireSecret(application)(scope, None, send)
    return sent


@pytest.mark.parametrize("path", ["/healthz", "/health/", "//health", "/health/../pause", "/", "/v1/models"])
async def test_no_other_path_than_health_is_open(path: str, monkeypatch: pytest.MonkeyPatch):
    scope = {"type": "http", "path": path, "headers": [(b"authorization", b"Bearer \xff")], "method": "OPTIONS"}
    assert (await answers(scope, monkeypatch))[0].get("status") == 401
    scope["headers"] = [(b"Authorization", f"Bearer {LONG}".encode())]
    assert await answers(scope, monkeypatch) == [{"type": "reached"}]


async def test_a_websocket_needs_it_too_and_a_start_of_the_server_does_not(monkeypatch: pytest.MonkeyPatch):
    socket = await answers({"type": "websocket", "path": "/health", "headers": []}, monkeypatch)
    assert socket == [{"type": "websocket.close", "code": 1008}]
    assert await answers({"type": "lifespan"}, monkeypatch) == [{"type": "reached"}]


def planned(config: RunConfig, folder: Path) -> Serving:
    """The served models of a run over one node of a cluster."""
    nodes: Any = SimpleNamespace(
        host=lambda node: "10.0.0.7", listen=lambda node: "10.0.0.7", gpus=lambda place: [0], take_port=lambda *_: 20000
    )
    return Serving(config, folder, "run", nodes, secret=LONG)


def test_on_two_nodes_every_program_listens_on_the_nodes_address_and_has_the_secret(tmp_path: Path):
    config = compose_run(["+method=memagent", "mode=plan", "model=qwen2.5-7b", "cluster=two_nodes"]).config
    actor = config.serving.models["actor"]
    serving = planned(config, tmp_path)
    serving.plan()
    programs = serving.programs()
    assert len(programs) == actor.num_replicas + 1
    for program in programs:
        command = program.spec.command
        assert (program.spec.listen, program.spec.secret) == ("10.0.0.7", LONG)
        assert command[command.index("--host") + 1] == LISTEN
        assert LONG not in " ".join(command) and LONG not in str(program.spec.environment)
    with pytest.raises(AssertionError, match="without a secret"):
        serving = planned(config, tmp_path)
        serving.secret = None
        serving.plan()


def two_nodes(*words: str) -> RunConfig:
    """A plan for two nodes."""
    return compose_run(["+method=memagent", "mode=plan", "model=qwen2.5-7b", "cluster=two_nodes", *words]).config


def test_a_ray_without_a_token_is_refused_beyond_the_loopback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert [problem.key for problem in reachable(two_nodes())] == ["cluster.ray_address"]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert reachable(two_nodes()) == []
    assert [problem.key for problem in reachable(two_nodes("cluster.ray_address=null"))] == ["cluster.host"]


def test_servers_of_others_that_are_trained_need_a_secret_beyond_the_loopback(monkeypatch: pytest.MonkeyPatch):
    words = ["+method=memagent", "cluster=external", "mode=plan", "model=qwen2.5-7b"]
    local, remote = (
        compose_run([*words, f"serving.models.actor.urls=[http://{host}:8000]"]).config for host in ("127.0.0.1", "10.0.0.7")
    )
    local.mode = remote.mode = type(local.mode).train
    assert reachable(local) == []
    assert [problem.key for problem in reachable(remote)] == ["serving.models.actor.urls"]
    monkeypatch.setenv(VARIABLE, LONG)
    assert reachable(remote) == []
    monkeypatch.setenv(VARIABLE, "short")
    assert [(problem.key, problem.value) for problem in reachable(remote)] == [(VARIABLE, "…")]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("+serving.models.actor.vllm_args.host=0.0.0.0", "serving.models.actor.vllm_args.host"),
        ("+serving.models.actor.vllm_args.api-key=abc", "serving.models.actor.vllm_args.api-key"),
        ("+serving.router_args.host=0.0.0.0", "serving.router_args.host"),
    ],
)
def test_another_address_or_key_of_a_server_is_refused(word: str, key: str):
    (problem,) = arguments(compose_run(["+method=memagent", "mode=plan", word]).config)
    assert problem.key == key and "abc" not in str(problem)


def test_the_variable_is_the_one_that_the_documentation_names():
    assert VARIABLE == "VIME_SECRET" and VARIABLE not in os.environ


GUARDED = """
    import http.server, os, sys
    right = f"Bearer {os.environ['VIME_SECRET']}"
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            is_right = self.path == "/health" or self.headers.get("Authorization") == right
            print(self.path, is_right, flush=True)
            self.send_response(200 if is_right else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            result = b'{"success": true, "results": [{"digest": "d", "num_tensors": 0, "pending": false}]}'
            self.wfile.write(b"" if self.path == "/metrics" else result)
        do_GET = do_POST = answer
        def log_message(self, *arguments):
            pass
    http.server.ThreadingHTTPServer((sys.argv[2], int(sys.argv[1])), Handler).serve_forever()
"""


async def test_a_server_that_wants_its_secret_is_watched_and_given_weights(unused_tcp_port: int, tmp_path: Path):
    command = [sys.executable, "-c", textwrap.dedent(GUARDED), PORT, LISTEN]
    log = tmp_path / "log"
    server = Server(
        ProgramSpec(
            name="actor-0",
            address="127.0.0.1",
            port=unused_tcp_port,
            command=command,
            log=str(log),
            secret=LONG,
            settings=ServingConfig(engine_timeout_seconds=1.0),
        )
    )
    await server.start()
    await asyncio.wait_for(server.ready(), 60)
    await server.metrics()
    while "/collective_rpc" not in log.read_text():  # a look at the engine
        await asyncio.sleep(0.1)
    assert await server.begin_update(1) > 0
    assert await server.events() == []
    await server.stop()
    lines = log.read_text()
    assert all(path in lines for path in ("/inference/v1/generate", "/pause", "/metrics"))
    assert "False" not in lines and LONG not in lines
