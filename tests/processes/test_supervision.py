"""Restarts, giving up, full disks, taken ports and the end of the driver, with a program that starts faster than vLLM."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from vime.errors import ServerError
from vime.processes import program
from vime.processes.program import PORT, ProgramSpec
from vime.serving.server import Server
from vime.weights.payload import WeightPayload

pytestmark = pytest.mark.slow

HEALTHY = """
    import http.server, sys, time
    print("starting", flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def do_POST(self):
            print(self.path, flush=True)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            report = b'{"digest": "d", "num_tensors": 0, "pending": false, "wrong": [], "unread": []}'
            self.wfile.write(b'{"success": true, "results": [' + report + b"]}")
        def log_message(self, *arguments):
            pass
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DRIVER = """
    import sys, ray
    from vime.processes.program import ProgramSpec
    from vime.serving.server import ServerActor
    port, log, payload, program, note, ray_dir = sys.argv[1:]
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, _temp_dir=ray_dir,
             _node_ip_address="127.0.0.1")
    command = [sys.executable, "-c", program, port]
    spec = ProgramSpec(name="actor-0", address="127.0.0.1", port=int(port), command=command, log=log, remove=[payload])
    actor = ServerActor.options(num_cpus=0).remote(spec)
    ray.get([actor.start.remote(), actor.ready.remote()])
    open(note, "w").write(str(ray.get(actor.pid.remote())))
    import time; time.sleep(600)
"""


def spec(port: int, folder: Path, *, start_seconds: float = 0.0, **changes) -> ProgramSpec:
    command = [sys.executable, "-c", textwrap.dedent(HEALTHY), PORT, str(start_seconds)]
    settings = {"health_interval_seconds": 0.2, "health_failures": 2, "max_restarts": 2, "log": str(folder / "actor-0.log")}
    return ProgramSpec(name="actor-0", address="127.0.0.1", port=port, command=command, **(settings | changes))


def kill_program(launched: int) -> None:
    psutil.Process(launched).children()[0].children()[0].kill()


async def next_launch(server: Server, old: int | None) -> int:
    while (pid := await server.pid()) == old or pid is None:
        await asyncio.sleep(0.05)
    await asyncio.wait_for(server.ready(), 60)
    return pid


async def test_a_program_is_restarted_so_many_times_and_then_given_up(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, health_failures=50))  # so that the exit code shows first
    await server.start()
    pid = None
    for _ in range(3):
        pid = await asyncio.wait_for(next_launch(server, pid), 60)
        kill_program(pid)
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    with pytest.raises(ServerError, match=r"actor-0 .*was given up: died: exit code 137"):
        await asyncio.wait_for(server.ready(), 60)
    events = [event["event"] for event in await server.events()]
    assert events == ["died", "recovered", "died", "recovered", "died", "gave_up"]
    assert await server.events() == []
    await server.stop()


async def wait_for_events(server: Server, *wanted: str) -> list[str]:
    """What happened until all that is wanted did."""
    seen: list[str] = []
    for _ in range(600):
        seen += [event["event"] for event in await server.events()]
        if set(wanted) <= set(seen):
            return seen
        await asyncio.sleep(0.1)
    raise AssertionError(f"waited for {wanted}, saw {seen}")


async def test_a_program_that_is_stopped_with_its_supervisor_is_ended_and_started_again(unused_tcp_port, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "END_SECONDS", 1.0)
    server = Server(spec(unused_tcp_port, tmp_path))
    await server.start()
    launched = psutil.Process(await asyncio.wait_for(next_launch(server, None), 60))
    stopped = [launched, *launched.children(recursive=True)]
    for process in stopped:
        process.suspend()
    assert await wait_for_events(server, "recovered") == ["hung", "recovered"]
    assert not any(process.is_running() and process.status() != "zombie" for process in stopped)
    await server.stop()


async def bind_when_free(taken: socket.socket, port: int) -> None:
    for _ in range(1000):
        try:
            return taken.bind(("127.0.0.1", port))
        except OSError:
            await asyncio.sleep(0.005)
    raise AssertionError(f"port {port} does not come free")


async def test_a_program_whose_port_is_taken_while_it_is_down_moves_to_another(unused_tcp_port, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PORT_SECONDS", 0.5)
    server = Server(spec(unused_tcp_port, tmp_path, health_failures=50))
    await server.start()
    kill_program(await asyncio.wait_for(next_launch(server, None), 60))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await bind_when_free(taken, unused_tcp_port)
        taken.listen()
        assert await wait_for_events(server, "recovered") == ["died", "moved", "recovered"]
        assert await server.url() not in ("", f"http://127.0.0.1:{unused_tcp_port}")
    await server.stop()


async def test_a_full_disk_costs_the_log_and_not_the_program(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, log="/dev/full"))
    await server.start()
    await asyncio.wait_for(server.ready(), 60)
    assert await server.events() == []
    await server.stop()


async def test_a_kept_cache_is_cleared_by_the_first_sync_after_a_restart(unused_tcp_port, tmp_path):
    """Until then it may have answered with the checkpoint's weights, and keys and values of those must go."""
    server = Server(spec(unused_tcp_port, tmp_path, keep_cache=True))
    await server.start()
    pid = await asyncio.wait_for(next_launch(server, None), 60)
    await server.sync(WeightPayload(version=1, digest="d"))
    kill_program(pid)
    await asyncio.wait_for(next_launch(server, pid), 60)
    await server.stop()
    before, after = (tmp_path / "actor-0.log").read_text().split("/resume")[:2]
    assert "/pause?mode=keep&clear_cache=false" in before and "/reset_prefix_cache" not in before
    assert "/pause?mode=keep&clear_cache=true" in after and "/reset_prefix_cache?reset_running_requests=true" in after


async def has_posted(folder: Path, expected: list[str]) -> bool:
    """Whether sleeping and waking up come in this order; the supervisor may write the log after the program has answered."""
    posted: list[str] = []
    for _ in range(200):
        lines = (folder / "actor-0.log").read_text().splitlines()
        posted = [line.partition("?")[0] for line in lines if line.startswith(("/sleep", "/wake_up"))]
        if len(posted) >= len(expected):
            break
        await asyncio.sleep(0.05)
    return posted == expected


async def test_a_server_that_is_starting_takes_no_memory_from_the_trainer(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, start_seconds=1.0))
    await server.start()
    await asyncio.wait_for(server.sleep(1), 60)
    assert await has_posted(tmp_path, ["/sleep"]), "it slept before the trainer's turn began"
    await server.wake()
    assert await has_posted(tmp_path, ["/sleep", "/wake_up"])
    await asyncio.wait_for(server.ready(), 60)
    await server.stop()


async def test_a_server_that_waits_for_its_weights_sleeps_as_well(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path))
    await server.adopt(3, None)
    await server.start()
    await asyncio.wait_for(server.wants_weights(), 60)
    await asyncio.wait_for(server.sleep(1), 60)
    await server.wake()
    assert await has_posted(tmp_path, ["/sleep", "/wake_up"])
    assert await server.sync(WeightPayload(version=3, digest="d")) == {}
    await asyncio.wait_for(server.ready(), 60)
    await server.stop()


async def test_a_server_that_dies_in_the_trainers_turn_starts_again_after_it(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, health_failures=50))
    await server.start()
    pid = await asyncio.wait_for(next_launch(server, None), 60)
    await server.sleep(1)
    kill_program(pid)
    assert await wait_for_events(server, "died") == ["died"]
    await asyncio.sleep(0.5)
    assert await server.pid() in (None, pid), "nothing is launched while the trainer has the memory"
    await server.sleep(1)
    await server.wake()
    await asyncio.sleep(0.5)
    assert await server.pid() in (None, pid), "nor while it still has its weights there, to compare"
    assert "died" in await server.trouble()
    await server.may_start()
    assert await wait_for_events(server, "recovered") == ["recovered"]
    assert await has_posted(tmp_path, ["/sleep"]), "the new one is awake"
    await server.stop()


async def test_a_successor_of_an_actor_waits_while_the_others_sleep(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path))
    await server.adopt(0, None, asleep=True)
    await server.start()
    await asyncio.sleep(0.5)
    assert await server.pid() is None
    await server.wake()
    await server.may_start()
    await asyncio.wait_for(server.ready(), 60)
    assert await server.trouble() == ""
    await server.stop()


async def test_a_server_that_cannot_be_reached_to_sleep_is_ended(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, health_failures=50, health_interval_seconds=30.0))
    await server.start()
    pid = await asyncio.wait_for(next_launch(server, None), 60)
    server._program.spec = replace(server._program.spec, port=1)  # nothing answers there
    await server.sleep(1)
    server._program.spec = replace(server._program.spec, port=unused_tcp_port)
    await server.wake()
    await server.may_start()
    await asyncio.wait_for(next_launch(server, pid), 60)
    await server.stop()


async def test_a_slow_start_is_waited_for_also_after_a_restart(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, start_seconds=2.0, health_failures=50))
    await server.start()
    kill_program(await asyncio.wait_for(next_launch(server, None), 60))
    assert await wait_for_events(server, "recovered") == ["died", "recovered"]
    await server.stop()


async def test_a_program_that_never_becomes_healthy_is_an_error_in_time(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, health_path="\\", start_timeout_seconds=1.0))
    await server.start()
    with pytest.raises(ServerError, match="hung: no sign of progress for 1 s of its start; its log ends with: starting"):
        await asyncio.wait_for(server.ready(), 60)
    await server.stop()


def test_nothing_stays_when_the_driver_is_killed(unused_tcp_port, tmp_path):
    note, payload, ray_dir = tmp_path / "note", tmp_path / "payload", f"/tmp/vime-test-{os.getpid()}"
    payload.mkdir()
    arguments = [str(unused_tcp_port), str(tmp_path / "log"), str(payload), textwrap.dedent(HEALTHY), str(note), ray_dir]
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DRIVER), *arguments], start_new_session=True)
    deadline = time.monotonic() + 120
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.1)
    launched = psutil.Process(int(note.read_text()))
    processes = [launched, *launched.children(recursive=True)]
    assert len(processes) == 3
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    shutil.rmtree(ray_dir, ignore_errors=True)
    assert alive == []
    assert not payload.exists()
