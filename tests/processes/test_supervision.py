"""Restarts, giving up, full disks, taken ports and the end of the driver, with a program that starts faster than vLLM."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tests.processes.stub_program import HEALTHY, kill_program, next_launch, spec, wait_for_events
from vime.errors import ServerError
from vime.processes import program
from vime.processes.keeper import Keeper

pytestmark = pytest.mark.slow

pytestmark = pytest.mark.slow
DRIVER = """
    import sys, ray
    from vime.processes.program import ProgramSpec
    from vime.processes.keeper import KeeperActor
    port, log, payload, program, note, ray_dir = sys.argv[1:]
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, _temp_dir=ray_dir,
             _node_ip_address="127.0.0.1")
    command = [sys.executable, "-c", program, port]
    spec = ProgramSpec(name="actor-0", address="127.0.0.1", port=int(port), command=command, log=log, remove=[payload])
    actor = KeeperActor.options(num_cpus=0).remote(spec)
    ray.get([actor.start.remote(), actor.ready.remote()])
    open(note, "w").write(str(ray.get(actor.pid.remote())))
    import time; time.sleep(600)
"""


async def test_a_program_is_restarted_so_many_times_and_then_given_up(unused_tcp_port, tmp_path):
    kept = Keeper(spec(unused_tcp_port, tmp_path, health_failures=50))  # so that the exit code shows first
    await kept.start()
    pid = None
    for _ in range(3):
        pid = await asyncio.wait_for(next_launch(kept, pid), 60)
        kill_program(pid)
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    with pytest.raises(ServerError, match=r"actor-0 .*was given up: died: exit code 137"):
        await asyncio.wait_for(kept.ready(), 60)
    events = [event["event"] for event in await kept.events()]
    assert events == ["died", "recovered", "died", "recovered", "died", "gave_up"]
    assert await kept.events() == []
    await kept.stop()


async def test_a_program_that_is_stopped_with_its_supervisor_is_ended_and_started_again(unused_tcp_port, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "END_SECONDS", 1.0)
    kept = Keeper(spec(unused_tcp_port, tmp_path))
    await kept.start()
    launched = psutil.Process(await asyncio.wait_for(next_launch(kept, None), 60))
    stopped = [launched, *launched.children(recursive=True)]
    for process in stopped:
        process.suspend()
    assert await wait_for_events(kept, "recovered") == ["hung", "recovered"]
    assert not any(process.is_running() and process.status() != "zombie" for process in stopped)
    await kept.stop()


async def bind_when_free(taken: socket.socket, port: int) -> None:
    for _ in range(1000):
        try:
            return taken.bind(("127.0.0.1", port))
        except OSError:
            await asyncio.sleep(0.005)
    raise AssertionError(f"port {port} does not come free")


async def test_a_program_whose_port_is_taken_while_it_is_down_moves_to_another(unused_tcp_port, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PORT_SECONDS", 0.5)
    kept = Keeper(spec(unused_tcp_port, tmp_path, health_failures=50))
    await kept.start()
    kill_program(await asyncio.wait_for(next_launch(kept, None), 60))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await bind_when_free(taken, unused_tcp_port)
        taken.listen()
        assert await wait_for_events(kept, "recovered") == ["died", "moved", "recovered"]
        assert await kept.url() not in ("", f"http://127.0.0.1:{unused_tcp_port}")
    await kept.stop()


async def test_a_full_disk_costs_the_log_and_not_the_program(unused_tcp_port, tmp_path):
    kept = Keeper(spec(unused_tcp_port, tmp_path, log="/dev/full"))
    await kept.start()
    await asyncio.wait_for(kept.ready(), 60)
    assert await kept.events() == []
    await kept.stop()


async def test_a_slow_start_is_waited_for_also_after_a_restart(unused_tcp_port, tmp_path):
    kept = Keeper(spec(unused_tcp_port, tmp_path, start_seconds=2.0, health_failures=50))
    await kept.start()
    kill_program(await asyncio.wait_for(next_launch(kept, None), 60))
    assert await wait_for_events(kept, "recovered") == ["died", "recovered"]
    await kept.stop()


async def test_a_program_that_never_becomes_healthy_is_an_error_in_time(unused_tcp_port, tmp_path):
    kept = Keeper(spec(unused_tcp_port, tmp_path, health_path="\\", start_timeout_seconds=1.0))
    await kept.start()
    with pytest.raises(ServerError, match="hung: no sign of progress for 1 s of its start; its log ends with: starting"):
        await asyncio.wait_for(kept.ready(), 60)
    await kept.stop()


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
