"""Restarts, giving up, and the end of the driver, with a program that starts faster than vLLM."""

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from vime.errors import ServerError
from vime.serving.program import ProgramSpec
from vime.serving.server import Server

HEALTHY = """
    import http.server, sys
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *arguments):
            pass
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DRIVER = """
    import sys, ray
    from vime.serving.program import ProgramSpec
    from vime.serving.server import ServerActor
    port, log, payload, program, note, ray_dir = sys.argv[1:]
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, _temp_dir=ray_dir,
             _node_ip_address="127.0.0.1")
    spec = ProgramSpec(name="actor-0", url=f"http://127.0.0.1:{port}", command=[sys.executable, "-c", program, port], log=log,
                       remove=[payload])
    actor = ServerActor.options(num_cpus=0).remote(spec)
    ray.get([actor.start.remote(), actor.ready.remote()])
    open(note, "w").write(str(ray.get(actor.pid.remote())))
    import time; time.sleep(600)
"""


def spec(port: int, folder: Path, **changes) -> ProgramSpec:
    command = [sys.executable, "-c", textwrap.dedent(HEALTHY), str(port)]
    settings = {"health_interval_seconds": 0.2, "health_failures": 2, "max_restarts": 2, **changes}
    return ProgramSpec(
        name="actor-0", url=f"http://127.0.0.1:{port}", command=command, log=str(folder / "actor-0.log"), **settings
    )


def kill_program(launched: int) -> None:
    psutil.Process(launched).children()[0].children()[0].kill()


async def next_launch(server: Server, old: int | None) -> int:
    while (pid := await server.pid()) == old or pid is None:
        await asyncio.sleep(0.05)
    await asyncio.wait_for(server.ready(), 60)
    return pid


async def test_a_program_is_restarted_so_many_times_and_then_given_up(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path))
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


async def test_a_program_that_never_becomes_healthy_is_an_error_in_time(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, health_path="\\", start_timeout_seconds=1.0))
    await server.start()
    with pytest.raises(ServerError, match="hung: not healthy after 1 s"):
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
