"""The token client against a scripted server, and against a real one where the server's own words matter."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

import vime.serving.client
from vime.config import ServingConfig
from vime.errors import ServerError
from vime.serving.client import BadRequestError, TokenClient
from vime.serving.topology import Endpoint

SAMPLING = {"temperature": 1.0, "max_tokens": 2}


def answer(*, version: str = "3", finish_reason: str = "stop") -> web.Response:
    content = [{"token_id": token, "logprob": -0.5} for token in (9, 2)]
    choice = {
        "token_ids": [9, 2],
        "finish_reason": finish_reason,
        "logprobs": {"content": content},
        "weight_versions": [{"version": "2", "start": 0, "end": 1}, {"version": version, "start": 1, "end": 2}],
    }
    return web.json_response({"choices": [choice]})


@contextlib.asynccontextmanager
async def scripted(*answers: Any, recovery_timeout_seconds: float = 20.0) -> AsyncIterator[tuple[TokenClient, list[Any]]]:
    """A client of a server that gives these answers in turn, the last one for ever; "drop" closes the connection."""
    requests: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        requests.append((request.headers.get("x-session-id"), await request.json()))
        reply = answers[min(len(requests), len(answers)) - 1]
        if reply == "drop":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return reply()

    app = web.Application()
    app.router.add_post("/inference/v1/generate", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    endpoint = Endpoint(name="actor", url=url, worker_urls=(url,), model="actor", tokenizer="", max_model_len=16, trained=True)
    client = TokenClient(endpoint, ServingConfig(recovery_timeout_seconds=recovery_timeout_seconds))
    yield client, requests
    await client.close()
    await runner.cleanup()


async def test_a_generation_has_one_version_per_token_and_the_session_in_its_header():
    async with scripted(answer) as (client, requests):
        generation = await client.generate([1, 5], sampling=SAMPLING, session_id="s1", request_id="r")
    assert (generation.output_ids, generation.logprobs, generation.weight_versions) == ([9, 2], [-0.5, -0.5], [2, 3])
    session, body = requests[0]
    assert session == "s1"
    assert body["token_ids"] == [1, 5]
    assert body["sampling_params"]["max_tokens"] == 2


async def test_a_server_without_a_sync_has_version_zero():
    async with scripted(lambda: answer(version="default")) as (client, _):
        generation = await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")
    assert generation.weight_versions == [2, 0]


@pytest.mark.parametrize(
    "trouble",
    [
        "drop",
        lambda: web.Response(status=503, text="no worker"),
        lambda: answer(finish_reason="abort"),
        lambda: answer(version="1"),
    ],
    ids=["dropped connection", "503", "aborted", "old weights"],
)
async def test_what_passes_is_tried_again(trouble):
    async with scripted(trouble, trouble, answer) as (client, requests):
        generation = await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r", minimum_version=2)
    assert generation.weight_versions == [2, 3]
    assert len({body["request_id"] for _, body in requests}) == 3


async def test_the_seconds_of_a_reply_are_those_of_the_attempt_that_was_answered(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(vime.serving.client, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def after(seconds: float, response: Any) -> Any:
        def reply() -> web.Response:
            clock[0] += seconds
            return response()

        return reply

    lost = after(100.0, lambda: web.Response(status=503, text="no worker"))
    async with scripted(lost, after(7.0, answer), recovery_timeout_seconds=1e6) as (client, _):
        generation = await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")
    assert generation.seconds == 7.0


async def test_a_server_that_stays_away_is_an_error_in_the_end():
    async with scripted(lambda: web.Response(status=503, text="no worker"), recovery_timeout_seconds=0.5) as (client, _):
        with pytest.raises(ServerError, match=r"no answer to r within 0 s .*status 503: no worker"):
            await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")


async def test_a_refused_request_is_not_sent_again():
    async with scripted(lambda: web.Response(status=400, text="no such token")) as (client, requests):
        with pytest.raises(BadRequestError, match="no such token"):
            await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")
    assert len(requests) == 1


async def test_more_tokens_than_the_model_has_positions_for_are_refused_before_they_are_sent():
    async with scripted(answer) as (client, requests):
        with pytest.raises(BadRequestError, match=r"15 prompt tokens and max_tokens=2 are 17, more than max_model_len=16"):
            await client.generate([1] * 15, sampling=SAMPLING, session_id="s", request_id="r")
    assert not requests


async def test_a_real_server_says_what_is_wrong_with_a_request(served):
    client = TokenClient(served["tied"].endpoint, served["tied"].config.serving)
    with pytest.raises(BadRequestError, match="temperature"):
        await client.generate([1], sampling={"temperature": -1.0, "max_tokens": 2}, session_id="s", request_id="r")
    await client.close()


async def test_a_seed_gives_the_same_tokens_if_the_prompt_is_read_in_parts(served):
    """Prompts of more tokens than one step reads; without `vime.serving.cpu_seeds` they end the engine."""
    stack = served["tied"]
    client = TokenClient(stack.endpoint, stack.config.serving)
    sampling = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "seed": 5}
    prompts = [[(7 * i + j) % 250 for j in range(700)] for i in range(24)]

    async def sampled(number: int) -> tuple[int, ...]:
        generation = await client.generate(prompts[number], sampling=sampling, session_id=f"s{number}", request_id=f"r{number}")
        return tuple(generation.output_ids)

    alone = [await sampled(number) for number in range(3)]
    together = await asyncio.gather(*[sampled(number) for number in range(len(prompts))])
    assert list(together[:3]) == alone
    assert client.calls.num_retries == 0
    await client.close()


async def test_requests_of_one_session_go_to_one_replica(served):
    stack = served["untied"]
    client = TokenClient(stack.endpoint, stack.config.serving)
    sampling = {"temperature": 0.0, "max_tokens": 4}
    first = await client.generate(list(range(64)), sampling=sampling, session_id="one", request_id="a")
    again = await client.generate(list(range(64)), sampling=sampling, session_id="one", request_id="b")
    assert first.output_ids == again.output_ids
    await client.close()
