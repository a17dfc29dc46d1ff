"""The actor of a server beside its keeper: sleep on shared GPUs and weights after a restart, with a program quicker than vLLM."""

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.processes.stub_program import kill_program, next_launch, spec, wait_for_events
from vime.errors import ServerError
from vime.serving.server import Server
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy

pytestmark = pytest.mark.slow


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
    """True if sleeping and waking up come in this order; the supervisor may write the log after the program has answered."""
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
    server = Server(spec(unused_tcp_port, tmp_path), policy=Policy(version=3), is_successor=True)
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
    server = Server(spec(unused_tcp_port, tmp_path), is_successor=True, asleep=True)
    await server.start()
    await asyncio.sleep(0.5)
    assert await server.pid() is None
    await server.wake()
    await server.may_start()
    await asyncio.wait_for(server.ready(), 60)
    assert await server.trouble() == ""
    await server.stop()


async def test_a_server_that_refuses_to_sleep_is_ended(unused_tcp_port, tmp_path):
    server = Server(spec(unused_tcp_port, tmp_path, misbehaves="refuse /sleep", health_failures=50))
    await server.start()
    pid = await asyncio.wait_for(next_launch(server, None), 60)
    await server.sleep(1)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    await server.wake()
    await server.may_start()
    await asyncio.wait_for(next_launch(server, pid), 60)
    assert [event["event"] for event in await server.events()] == ["sync_failed", "died", "recovered"]
    await server.stop()


async def test_a_server_whose_engine_hangs_is_restarted_and_given_up(unused_tcp_port, tmp_path):
    hanging = spec(unused_tcp_port, tmp_path, misbehaves="hang /collective_rpc", engine_timeout_seconds=0.5, max_restarts=1)
    server = Server(hanging)
    await server.start()
    assert await wait_for_events(server, "gave_up") == ["hung", "recovered", "hung", "gave_up"]
    with pytest.raises(ServerError, match=r"was given up: hung: its engine gave no answer for"):
        await server.ready()
    await server.stop()
