"""Requests for what a session does not have are refused in the form of their protocol, and say what it has."""

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.gateway.scripted import Asked
from vime.rollout.outside_agent import session_environment

COMPACT = "/v1/responses/compact"
PATHS = {
    "/v1/embeddings": False,
    "/v1/completions": False,
    "/v1/moderations": False,
    "/v1/batches": False,
    "/v1/files/file_1/content": False,
    COMPACT: False,
    "/v1/responses/resp_1/input_items": False,
    "/chat/completions": False,
    "/v1/messages/batches": True,
    "/v1/messages/batches/b_1/results": True,
}
"""Paths below the URL of a session, and whether they are those of Anthropic's API."""


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
async def test_a_route_that_is_not_served_is_refused_in_the_form_of_its_protocol(opened: Callable[..., Asked], method: str):
    asked = opened("</think>one<|im_end|>")
    async with aiohttp.ClientSession() as client:
        for path, is_anthropic in PATHS.items():
            if path == COMPACT and method in ("GET", "DELETE"):
                continue  # as any other id of an earlier answer
            async with client.request(method, f"{asked.session.url}{path}", json={"input": "x"}) as response:
                body: dict[str, Any] = await response.json()
            assert response.status == 404, path
            assert (body.get("type") == "error") == is_anthropic, path
            assert path in body["error"]["message"] and "/v1/chat/completions" in body["error"]["message"]
    assert asked.session.counts["refused"] == len(PATHS) - (method in ("GET", "DELETE"))
    assert (await asked.ask({"role": "user", "content": "1?"})).choices[0].message.content == "one"


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade"])
async def test_an_upgrade_to_a_websocket_is_answered_with_the_status_at_which_clients_take_http(
    opened: Callable[..., Asked], connection: str
):
    asked = opened()
    headers = {"Connection": connection, "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    url = f"{asked.session.openai_url}/responses"
    async with aiohttp.ClientSession() as client:
        async with client.get(url, headers={**headers, "Sec-WebSocket-Key": "RMuKQiFOa7/VSoFnh3CiQg=="}) as response:
            assert response.status == 426 and (await response.json())["error"]["message"]
        async with client.get(url) as response:
            assert response.status == 404


def test_programs_find_their_model_by_the_variables_of_every_sdk(opened: Callable[..., Asked]):
    session = opened().session
    variables = session_environment(session)
    for provider in ("OPENAI", "ANTHROPIC"):
        assert variables[f"{provider}_API_KEY"] == session.secret and variables[f"{provider}_BASE_URL"].startswith(session.url)
