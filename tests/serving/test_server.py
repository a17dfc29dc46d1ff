"""Servers that die, hang, cannot start: real ones, killed for real."""

import asyncio
import dataclasses
import os
import socket
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest

from vime.errors import ServerError
from vime.processes.secret import headers
from vime.serving.client import TokenClient
from vime.serving.topology import Serving

LONG = {"temperature": 1.0, "max_tokens": 300, "ignore_eos": True}


async def program_of(actor) -> psutil.Process:
    return psutil.Process(await actor.pid.remote()).children()[0].children()[0]


async def until(condition, what: str, timeout_seconds: float = 240.0, poll_seconds: float = 0.2) -> None:
    for _ in range(int(timeout_seconds / poll_seconds)):
        if await condition():
            return
        await asyncio.sleep(poll_seconds)
    raise AssertionError(f"{what} did not happen")


async def bind_when_free(taken: socket.socket, port: int) -> None:
    async def is_bound() -> bool:
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    await until(is_bound, f"a free port {port}", poll_seconds=0.005)


def youngest(process: psutil.Process) -> psutil.Process:
    """The last process in a chain of children: a server's worker."""
    below = [child for child in process.children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]
    return max(below, key=lambda child: child.create_time())


async def has_trouble(stack, server: str) -> bool:
    return bool(await stack.serving.actors("actor")[server].trouble.remote())


async def collect_until(stack, event: str) -> list[dict]:
    seen: list[dict] = []

    async def happened() -> bool:
        seen.extend(await stack.serving.events())
        return any(found["event"] == event for found in seen)

    await until(happened, event)
    return seen


async def test_requests_in_flight_outlive_a_killed_engine_which_comes_back_with_the_weights_it_missed(served):
    """The engine is the server's worker process; `test_end_to_end.py` kills the whole program."""
    stack = served["untied"]
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    await stack.serving.events()
    client = TokenClient(stack.endpoint, stack.config.serving)
    requests = [
        asyncio.create_task(client.generate([i, 7, 9], sampling=LONG, session_id=f"s{i}", request_id=f"r{i}")) for i in range(48)
    ]
    await asyncio.sleep(0.3)
    log = Path(stack.serving.program("actor-0").spec.log)
    size = log.stat().st_size
    youngest(await program_of(stack.serving.actors("actor")["actor-0"])).kill()
    await until(partial(has_trouble, stack, "actor-0"), "the loss of the server")
    stack.trainer.step()
    metrics = await stack.sync(stack.trainer.export())
    assert metrics["sync/num_servers"] == 1
    assert all(len(generation.output_ids) == 300 for generation in await asyncio.gather(*requests))
    events = await collect_until(stack, "recovered")
    assert {event["server"] for event in events} == {"actor-0"}
    how, *others = [event["event"] for event in events]  # its health endpoint may fail before its process has ended
    assert how in ("died", "hung") and others == ["recovered"]
    assert log.stat().st_size - size < 200_000, "each request of a dead engine has logged a trace"
    restarted = TokenClient(stack.endpoint.workers()[0], stack.config.serving)
    generation = await restarted.generate([1], sampling=LONG, session_id="s", request_id="r")
    assert set(generation.weight_versions) == {stack.trainer.version}
    await stack.probe()
    await client.close()
    await restarted.close()


@pytest.mark.parametrize("part", [pytest.param("api server", marks=pytest.mark.long), "worker"])
async def test_a_server_of_which_a_part_hangs_is_restarted_and_its_request_answered(served, part):
    """The health endpoint notices nothing of a worker that hangs."""
    stack = served["tied"]
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    await stack.serving.events()
    api_server = await program_of(stack.serving.actors("actor")["actor-0"])
    hanging = api_server if part == "api server" else youngest(api_server)
    hanging.suspend()
    if part == "worker":
        async with aiohttp.ClientSession() as session, session.get(f"{stack.endpoint.url}/health") as response:
            assert response.status == 200  # all seems well
    client = TokenClient(stack.endpoint, stack.config.serving)
    generation = await client.generate([1], sampling=LONG, session_id="s", request_id="r", minimum_version=stack.trainer.version)
    assert len(generation.output_ids) == 300
    assert client.calls.num_retries > 0 and client.calls.num_requests == 1
    assert [event["event"] for event in await collect_until(stack, "recovered")] == ["hung", "recovered"]
    await stack.probe()
    await client.close()


async def test_a_lost_router_comes_back_on_its_port_and_no_request_is_lost(served):
    stack = served["untied"]
    await stack.serving.events()
    url = stack.endpoint.url
    client = TokenClient(stack.endpoint, stack.config.serving)
    requests = [
        asyncio.create_task(client.generate([i, 7, 9], sampling=LONG, session_id=f"s{i}", request_id=f"r{i}")) for i in range(8)
    ]
    await asyncio.sleep(0.3)
    (await program_of(stack.serving.program("actor-router").actor)).kill()
    assert all(len(generation.output_ids) == 300 for generation in await asyncio.gather(*requests))
    assert [event["event"] for event in await collect_until(stack, "recovered")] == ["died", "recovered"]
    assert stack.endpoint.url == url
    await client.close()


async def test_a_lost_actor_has_a_successor_that_moves_if_its_port_is_taken_and_knows_the_weights(served):
    stack = served["untied"]
    stack.trainer.step()
    payload = stack.trainer.export()
    await stack.sync(payload)
    await stack.serving.events()
    old = stack.endpoint.worker_urls
    watching = asyncio.create_task(stack.serving.watch())
    launched = psutil.Process(await stack.serving.actors("actor")["actor-1"].pid.remote())
    actor = launched.parent()
    assert actor is not None
    actor.kill()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await bind_when_free(taken, int(old[1].rpartition(":")[2]))
        taken.listen()
        events = await collect_until(stack, "recovered")
    assert [event["event"] for event in events] == ["lost", "moved", "recovered"]
    assert os.path.exists(payload.files[0])
    assert stack.endpoint.worker_urls[0] == old[0] and stack.endpoint.worker_urls[1] != old[1]
    await stack.probe()
    client = TokenClient(dataclasses.replace(stack.endpoint.workers()[1], url=old[1]), stack.config.serving)  # asks its actor
    generation = await client.generate([1], sampling=LONG, session_id="s", request_id="r")
    assert set(generation.weight_versions) == {stack.trainer.version}
    await until(lambda: routes_to(stack), "the router's new list")
    watching.cancel()
    await client.close()


async def routes_to(stack) -> bool:
    session = aiohttp.ClientSession(headers=headers(stack.endpoint.secret))
    async with session, session.get(f"{stack.endpoint.url}/list_workers") as response:
        return set((await response.json(content_type=None))["urls"]) == set(stack.endpoint.worker_urls)


async def test_a_server_that_cannot_start_is_an_error_with_the_end_of_its_log(
    checkpoints, ray_cluster, make_serving_config, tmp_path
):
    config = make_serving_config(checkpoints["untied"], no_such_argument=1)
    serving = Serving(config, tmp_path, "cannot")
    serving.start()
    with pytest.raises(ServerError, match=r"actor-0 .*died: while starting(.|\n)*unrecognized arguments: --no-such-argument"):
        await serving.ready()
    await serving.stop()


def test_a_port_in_use_is_reported_before_anything_starts(checkpoints, make_serving_config, tmp_path):
    config = make_serving_config(checkpoints["untied"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = config.serving.models["actor"].port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"serving\.models\.actor\.port: port {port} on 127\.0\.0\.1 is not free"):
            Serving(config, tmp_path, "taken").start()


async def test_external_servers_are_used_and_not_started(served, make_serving_config, tmp_path):
    stack = served["tied"]
    config = make_serving_config(stack.endpoint.tokenizer)
    config.serving.models["actor"].urls = [stack.endpoint.url + "/"]
    serving = Serving(config, tmp_path, "external")
    serving.start()
    await serving.ready()
    assert serving.actors("actor") == {}
    assert serving.endpoints()["actor"].url == stack.endpoint.url
    await serving.stop()
