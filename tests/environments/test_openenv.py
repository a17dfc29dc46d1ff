"""An OpenEnv server of our own with one place: rollouts wait for it, and one that dies is asked again."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.environments.test_play import played
from vime.environments import steps
from vime.environments.environment import load_environment
from vime.errors import ConfigError
from vime.types import StopReason

FIELDS = {"direction": {"type": "string"}, "metadata": {"type": "object"}}


class Server:
    """Walks: `up` gives 1 and ends at height 2; other directions are validation errors."""

    def __init__(self) -> None:
        self.num_open = self.most_open = self.num_sessions = self.num_refused = 0
        self.dies_in: int | None = None
        self.url = ""
        self.runner: Any = None
        self.site: Any = None

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": {"type": "object", "properties": FIELDS, "required": ["direction"]}})

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.num_open >= 1:
            self.num_refused += 1
            await socket.send_json({"type": "error", "data": {"message": "Server at capacity: 1/1 sessions active"}})
            await socket.close()
            return socket
        self.num_open += 1
        self.num_sessions += 1
        number, height = self.num_sessions, 0
        self.most_open = max(self.most_open, self.num_open)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                asked = json.loads(message.data)
                await asyncio.sleep(0.01)
                if asked["type"] == "close":
                    break
                if asked["type"] == "step" and number == self.dies_in:
                    request.transport.abort()  # type: ignore[union-attr]
                    break
                if asked["type"] == "step" and asked["data"]["direction"] not in ("up", "down"):
                    said: dict[str, Any] = {"code": "VALIDATION_ERROR", "errors": [{"msg": "Input should be up or down"}]}
                    if asked["data"]["direction"] == "aside":
                        said = {"code": "EXECUTION_ERROR", "message": "a wall"}
                    await socket.send_json({"type": "error", "data": said})
                    continue
                up = asked["type"] == "step" and asked["data"]["direction"] == "up"
                height += up
                state = {"observation": {"height": height}, "reward": float(up) or None, "done": height >= 2}
                await socket.send_json({"type": "observation", "data": state})
        finally:
            self.num_open -= 1
        return socket


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(steps, "WAITING_SECONDS", 0.02)
    found, app = Server(), web.Application()
    app.add_routes([web.get("/schema", found.schema), web.get("/ws", found.session)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.runner, found.site = runner, site
    found.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    yield found
    await runner.cleanup()


async def test_eight_rollouts_share_one_place_and_none_is_lost(byte_tokenizer: Any, server: Server):
    env = load_environment("openenv", {"url": server.url})
    replies = ["sideways", '{"direction": "up"}', "up"]
    found = await asyncio.gather(*(played(byte_tokenizer, env, replies, row={"seed": n}) for n in range(8)))
    assert [(each.stop_reason, each.reward, each.num_retries) for each in found] == [(StopReason.ANSWERED, 2.0, 0)] * 8
    assert server.most_open == 1 and server.num_refused > 0
    assert server.num_sessions == 8 and server.num_open == 0
    assert all(each.counts["illegal_moves"] == 1 for each in found)
    text = byte_tokenizer.decode(found[0].samples[0].tokens)
    assert "Input should be up or down" in text and '"direction"' in text


async def test_an_error_of_a_step_is_the_environments_unless_it_is_to_be_told(byte_tokenizer: Any, server: Server):
    replies = ["aside", "up", "up"]
    environment = load_environment("openenv", {"url": server.url})
    rollout = await played(byte_tokenizer, environment, ["aside", *replies])
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "a wall (EXECUTION_ERROR)" in rollout.error
    rollout = await played(byte_tokenizer, load_environment("openenv", {"url": server.url, "lost": "tell"}), replies)
    assert rollout.reward == 2.0 and rollout.counts["illegal_moves"] == 1 and rollout.num_retries == 0


async def test_a_session_that_is_cut_is_played_again(byte_tokenizer: Any, server: Server):
    server.dies_in = 1
    env = load_environment("openenv", {"url": server.url, "instruction": "Walk."})
    rollout = await played(byte_tokenizer, env, ["up", "up", "up"])
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.num_retries == 1 and rollout.reward == 2.0


async def test_a_server_that_is_not_there_costs_its_rollout(byte_tokenizer: Any):
    env = load_environment("openenv", {"url": "http://127.0.0.1:9"})
    rollout = await played(byte_tokenizer, env, [])
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "127.0.0.1:9" in rollout.error


def test_an_address_that_is_no_url_is_a_problem():
    with pytest.raises(ConfigError, match=r"method\.settings\.url"):
        load_environment("openenv", {"url": "localhost"})


async def test_a_server_that_is_gone_is_waited_for_if_it_has_answered_before(byte_tokenizer: Any, server: Server):
    environment = load_environment("openenv", {"url": server.url})
    replies = ["up", "up"]
    assert (await played(byte_tokenizer, environment, replies)).reward == 2.0
    port = int(server.url.rpartition(":")[2])
    await server.site.stop()
    waiting = asyncio.create_task(played(byte_tokenizer, environment, replies))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    again = web.TCPSite(server.runner, "127.0.0.1", port)
    await again.start()
    assert (await waiting).reward == 2.0
    lost = await played(byte_tokenizer, load_environment("openenv", {"url": "http://127.0.0.1:9"}), replies)
    assert lost.stop_reason is StopReason.SANDBOX_CRASHED
