"""The proxy that records a client's calls: what it keeps, and what it adds."""

import sys
from pathlib import Path

import aiohttp
import numpy as np
import orjson
import pytest
from aiohttp import web
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from service_client import FINAL, SESSION, Recorded, ServiceClient, training_body
from service_recorder import Recorder

OWN = "0123456789abcdef"
DATUM = {"tokens": [1, 2], "target_tokens": [2, 3], "weights": [1.0, 1.0]}


class Service:
    """A service that takes every call, and notes its body."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def answer(self, request: web.Request) -> web.Response:
        route, body = request.path.rpartition("/")[2], await request.read()
        if route == "create_session":
            return web.json_response({"session_id": OWN})
        if route == "retrieve_future":
            return web.json_response({"done": orjson.loads(body)["request_id"]})
        self.bodies.append(body)
        return web.json_response({"request_id": f"{OWN}:{len(self.bodies)}"})


async def recorded(folder: Path, *, fetched: int) -> tuple[Recorded, list[bytes]]:
    """What is recorded of three calls, of which the results of the first ones are fetched, and what the service got."""
    adapter = folder / "checkpoints" / f"{OWN}:train:0" / "weights" / FINAL / "adapter"
    adapter.mkdir(parents=True)
    save_file({"a": np.ones(2, np.float32)}, adapter / "adapter_model.safetensors")
    service, app = Service(), web.Application()
    app.router.add_post("/{path:.*}", service.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            recorder = Recorder(f"http://127.0.0.1:{runner.addresses[0][1]}", http)
            async with recorder.serving() as url:
                client = ServiceClient(url, http, key="tml-test")
                await client.open()
                about = {"session_id": client.session, "model_seq_id": 0, "lora_config": {"rank": 4}}
                asked = {"sampling_session_id": f"{client.session}:sample:0", "sampling_params": {"seed": 7}}
                bodies = {"create_model": about, "forward_backward": training_body(client.model, 1, [DATUM], "cross_entropy")}
                ids = [(await client.post(route, body))["request_id"] for route, body in (bodies | {"asample": asked}).items()]
                for id in ids[:fetched]:
                    await client.result(id)
        return recorder.recorded(folder), service.bodies
    finally:
        await runner.cleanup()


async def test_calls_are_kept_in_their_order_without_the_name_of_their_session(tmp_path: Path):
    found, bodies = await recorded(tmp_path, fetched=3)
    assert [request.route for request in found.requests] == ["create_model", "forward_backward", "asample"]
    assert [request.body.replace(SESSION, OWN.encode()) for request in found.requests] == bodies
    assert not any(OWN.encode() in request.body for request in found.requests)
    assert found.requests[2].sampler == f"{SESSION.decode()}:sample:0"
    assert len(set(found.answers)) == 3


async def test_only_calls_without_a_seed_are_given_one(tmp_path: Path):
    found, _ = await recorded(tmp_path, fetched=3)
    created, trained, sampled = found.requests
    assert created.fields["lora_config"]["rank"] == 4 and created.fields["lora_config"]["seed"] > 0
    assert trained.body.replace(SESSION, OWN.encode()) == training_body(f"{OWN}:train:0", 1, [DATUM], "cross_entropy")
    assert sampled.fields["sampling_params"] == {"seed": 7}


async def test_a_call_whose_result_was_never_fetched_cannot_be_compared(tmp_path: Path):
    with pytest.raises(ValueError, match="1 calls were never answered"):
        await recorded(tmp_path, fetched=2)
