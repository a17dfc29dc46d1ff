"""The run folder and the address of Ray, as this machine finds them."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from vime.cluster.ports import why_silent
from vime.config import RunConfig
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.rules import machine_requirements
from vime.preflight.validation import find_problems

PLAN = ("+method=memagent", "mode=plan")


def problem(config: RunConfig) -> str:
    """The problem of an address."""
    return "\n".join(map(str, machine_requirements.ray_answers(config)))


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("{tmp}/file", "is a file"),
        ("{tmp}/file/run", "is a file"),
        ("{tmp}/file/a/b/c", "is a file"),
        ("/proc/self/run", "cannot be made"),
        ("/dev/null/run", "is a file"),
        ("{tmp}/" + "x" * 300, "cannot be made"),
        ("{tmp}/new/" + "y" * 300, "cannot be made"),
        ("{tmp}/" + "a/" * 3000, "cannot be made"),
        ("{tmp}/loop/run", "cannot be made"),
    ],
)
def test_a_run_folder_that_cannot_be_made_is_refused_in_a_plan_too(folder: str, reason: str, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError) as error:
        compose_run([*PLAN, f"output_dir={folder.format(tmp=tmp_path)}"], check=find_problems)
    assert [(found.key, reason in found.remedy, "output_dir" in found.remedy) for found in error.value.problems] == [
        ("output_dir", True, True)
    ]


def test_a_name_too_long_for_a_folder_is_refused():
    with pytest.raises(ConfigError, match="more than 255 bytes"):
        compose_run([*PLAN, f"name={'x' * 300}"], check=find_problems)


def test_asking_leaves_nothing(tmp_path: Path):
    compose_run([*PLAN, f"output_dir={tmp_path / 'a' / 'b'}"], check=find_problems)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def config() -> RunConfig:
    return RunConfig()


@pytest.fixture
def ray_like() -> Iterator[str]:
    """A gRPC server, as Ray's is."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_a_ray_that_answers_is_no_problem(ray_like: str, config: RunConfig):
    for address in (ray_like, f"ray://{ray_like}", ray_like.replace("127.0.0.1", "localhost")):
        config.cluster.ray_address = address
        assert machine_requirements.ray_answers(config) == []


@pytest.mark.parametrize("address", ["127.0.0.1:9", "localhost:9", "no-such-host.invalid:6379", "ray://127.0.0.1:9"])
def test_an_address_where_nobody_listens_is_said(address: str, config: RunConfig):
    config.cluster.ray_address = address
    assert f"cluster.ray_address={address}: no Ray answers there" in problem(config)


@pytest.mark.parametrize("address", ["127.0.0.1", "nonsense", ":6379", "127.0.0.1:", "127.0.0.1:ray", "127.0.0.1:99999"])
def test_what_is_no_address_is_said(address: str, config: RunConfig):
    config.cluster.ray_address = address
    assert "use HOST:PORT" in problem(config)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"", None])
def test_another_program_on_the_port_is_no_ray(answer: bytes | None, config: RunConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_requirements, "why_silent", lambda host, port: why_silent(host, port, seconds=0.5))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            held.append(connection)
            if answer is not None:
                connection.sendall(answer)
                with contextlib.suppress(OSError):  # it has hung up
                    connection.shutdown(socket.SHUT_WR)

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        config.cluster.ray_address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "no Ray answers there" in problem(config)
        thread.join()
        held[0].close()


def test_auto_is_the_cluster_of_this_machine_and_refused_without_one(
    ray_like: str, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config.cluster.ray_address = "auto"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert "no cluster is known" in problem(config)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
    assert "no Ray answers there" in problem(config)
    monkeypatch.setenv("RAY_ADDRESS", ray_like)
    assert machine_requirements.ray_answers(config) == []


@pytest.mark.parametrize("path", ["/home/o'brien/.venv/bin/python", "/srv/a\\b/python", '/my (v1) [é] "x"/python'])
def test_an_interpreter_that_ray_cannot_start_is_refused(path: str, config: RunConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.executable", path)
    refused = machine_requirements.interpreter(config)
    assert [found.value for found in refused] == ([path] if set(path) & {"'", "\\"} else [])
    config.cluster.ray_address = "10.0.0.7:6379"  # whose workers have an interpreter of their own
    assert machine_requirements.interpreter(config) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_refused():
    assert machine_requirements.why_not_made(Path("/root/run")) is not None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["+serving.models.judge.checkpoint=some/model", "serving.models.judge.gpu_memory_utilization=0.8"], "judge"),
        (["serving.models.actor.gpu_memory_utilization=0.9"], "actor"),
        (["serving.models.actor.num_replicas=20"], "actor"),
        (["+serving.models.actor.groups={a:{gpu_memory_utilization:0.2},b:{gpu_memory_utilization:0.5}}"], "actor"),
    ],
)
def test_servers_whose_caches_exceed_the_free_memory_of_the_host_are_refused_by_name(
    words: list[str], named: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine_requirements, "memory_bytes", lambda: 20 * 2**30)
    monkeypatch.setattr(machine_requirements, "available_memory_bytes", lambda: 12 * 2**30)
    usual = compose_run(["+method=memagent", "cluster=laptop"]).config
    config = compose_run(["+method=memagent", "cluster=laptop", *words]).config

    judged = compose_run(["+method=memagent", "cluster=laptop", "+serving.models.judge.checkpoint=some/model"]).config
    assert machine_requirements.host_memory(usual) == machine_requirements.host_memory(judged) == []
    (found,) = machine_requirements.host_memory(config)
    assert found.key == f"serving.models.{named}.gpu_memory_utilization"
    assert "0.60 is free" in found.remedy
