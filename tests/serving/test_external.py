"""The client of a chat API against a scripted endpoint: limits, retries, refusals, prices, and the key that is never shown."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from vime.config import ChatConfig, ServingConfig
from vime.errors import ContextFullError, ServerError
from vime.serving import external
from vime.serving.client import BadRequestError
from vime.serving.endpoint import Endpoint
from vime.serving.external import ChatClient, until_answering

MESSAGES = [{"role": "user", "content": "2+2?"}]
KEY = "sk-a-secret"


def answer() -> web.Response:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "refusal": None}
    choice = {"message": message, "finish_reason": "tool_calls"}
    return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1000, "completion_tokens": 500}})


@contextlib.asynccontextmanager
async def scripted(monkeypatch: Any, *answers: Any, **chat: Any) -> AsyncIterator[tuple[Endpoint, list[Any]]]:
    """An endpoint that gives these answers one by one, and the last one forever; and its requests: (time, header, body)."""
    monkeypatch.setenv("VIME_TEST_KEY", KEY)
    monkeypatch.setattr(external, "FIRST_BACKOFF_SECONDS", 0.01)
    requests: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        requests.append((time.monotonic(), request.headers.get("authorization"), await request.json()))
        reply = answers[min(len(requests), len(answers)) - 1]()
        return await reply if asyncio.iscoroutine(reply) else reply

    async def models(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers.get("authorization") == f"Bearer {KEY}" else 401)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # a hanging handler is not waited for
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    config = ChatConfig(api_key_variable="VIME_TEST_KEY", **chat)
    yield (
        Endpoint(
            name="judge", url=url, worker_urls=(url,), model="big", tokenizer="", max_model_len=0, trained=False, chat=config
        ),
        requests,
    )
    await runner.cleanup()


async def test_a_request_has_key_model_tools_and_body_and_its_tokens_are_paid(monkeypatch):
    chat = {"dollars_per_million_input_tokens": 2.0, "dollars_per_million_output_tokens": 10.0}
    body = {"max_tokens": None, "max_completion_tokens": 9}
    async with scripted(monkeypatch, answer, body=body, **chat) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        reply = await client.chat(MESSAGES, max_tokens=9, tools=[{"type": "function"}])
        await client.close()
    assert reply.message == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    assert reply.usage == (1000, 500)
    assert requests[0][1] == f"Bearer {KEY}"
    assert requests[0][2] == {"model": "big", "messages": MESSAGES, "tools": [{"type": "function"}], "max_completion_tokens": 9}
    assert client.calls.metrics(is_paid=True)["dollars"] == pytest.approx(0.002 + 0.005)


async def hanging() -> web.Response:
    await asyncio.sleep(5)
    return answer()


def page() -> web.Response:
    return web.Response(text=f"<html>Bearer {KEY} is not signed in</html>", content_type="text/html")


def json_error() -> web.Response:
    return web.json_response({"error": {"message": f"no capacity for {KEY}"}})


def partial_error() -> web.Response:
    choice = {"message": {"content": "2+2 is"}, "finish_reason": "error"}
    return web.json_response({"error": {"message": "lost"}, "choices": [choice], "usage": {"completion_tokens": 3}})


def redirect() -> web.Response:
    return web.Response(status=307, headers={"location": "/v1/chat/completions"})


TROUBLES = {
    "too many requests": lambda: web.Response(status=429, headers={"retry-after": "0.05"}),
    "server error": lambda: web.Response(status=502),
    "hang": hanging,
    "page with status 200": page,
    "error with status 200": json_error,
    "error with status 200 and a beginning": partial_error,
    "status 200 without choices": lambda: web.json_response({"choices": []}),
    "JSON of another kind": lambda: web.json_response([1]),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_what_passes_is_tried_again(monkeypatch, trouble):
    async with scripted(monkeypatch, trouble, trouble, answer, request_timeout_seconds=0.5) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        await client.chat(MESSAGES, max_tokens=9)
        await client.close()
    assert len(requests) == 3
    assert (client.calls.num_requests, client.calls.num_retries, client.calls.num_failures) == (1, 2, 0)
    assert client.calls.output_tokens == 500


async def test_an_endpoint_that_stays_away_is_an_error_in_the_end(monkeypatch):
    async with scripted(monkeypatch, lambda: web.Response(status=503, text="busy"), max_retries=2) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        with pytest.raises(ServerError, match=r"judge .* no answer in 3 attempts .*status 503: busy"):
            await client.chat(MESSAGES, max_tokens=9)
        await client.close()
    assert (len(requests), client.calls.num_failures) == (3, 1)


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (page, "status 200 without a reply: <html>Bearer … is not"),
        (json_error, 'status 200 without a reply: {"error": {"message": "no capacity for …"}}'),
        (redirect, "TooManyRedirects: "),
    ],
    ids=["page", "JSON error", "redirect loop"],
)
async def test_an_error_does_not_show_the_key(monkeypatch, trouble, text: str):
    async with scripted(monkeypatch, trouble, max_retries=1) as (endpoint, _):
        client = ChatClient(endpoint, ServingConfig())
        with pytest.raises(ServerError) as caught:
            await client.chat(MESSAGES, max_tokens=9)
        await client.close()
    assert f"in 2 attempts (serving.models.judge.chat.max_retries); last: {text}" in str(caught.value)
    shown = "".join((str(caught.value), repr(caught.value), *traceback.format_exception(caught.value)))
    assert KEY not in shown
    assert (client.calls.num_requests, client.calls.num_retries, client.calls.num_failures) == (0, 1, 1)


async def test_a_refusal_is_not_sent_again_and_does_not_show_the_key(monkeypatch):
    async with scripted(monkeypatch, lambda: web.Response(status=400, text=f"wrong key {KEY}")) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        with pytest.raises(BadRequestError, match="status 400: wrong key …") as caught:
            await client.chat(MESSAGES, max_tokens=9)
        await client.close()
    assert len(requests) == 1 and KEY not in str(caught.value) and KEY not in repr(endpoint)


@pytest.mark.parametrize(
    ("answer", "is_full"),
    [
        ('{"error": {"code": "context_length_exceeded", "message": "too long"}}', True),
        ('{"error": {"message": "This model\'s maximum context length is 100 tokens. However, you requested 120"}}', True),
        ('{"error": {"code": "invalid_api_key", "message": "context"}}', False),
    ],
)
async def test_a_prompt_that_is_too_long_is_told_from_other_refusals(monkeypatch, answer: str, is_full: bool):
    async with scripted(monkeypatch, lambda: web.Response(status=400, text=answer)) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        with pytest.raises(BadRequestError) as caught:
            await client.chat(MESSAGES, max_tokens=9)
        await client.close()
    assert isinstance(caught.value, ContextFullError) == is_full and len(requests) == 1


async def test_no_more_requests_start_in_a_minute_and_run_at_once_than_allowed(monkeypatch):
    running: list[int] = [0, 0]

    async def slow() -> web.Response:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.15)
        running[0] -= 1
        return answer()

    limits = {"max_requests_per_minute": 1200.0, "max_concurrent_requests": 2}
    async with scripted(monkeypatch, slow, **limits) as (endpoint, requests):
        client = ChatClient(endpoint, ServingConfig())
        await asyncio.gather(*[client.chat(MESSAGES, max_tokens=9) for _ in range(8)])
        await client.close()
    times = [request[0] for request in requests]
    assert running[1] == 2
    assert times[-1] - times[0] > 7 * 0.05 * 0.9


async def test_a_refused_key_is_said_before_the_run_starts(monkeypatch):
    async with scripted(monkeypatch, answer) as (endpoint, _):
        await until_answering(endpoint, timeout_seconds=5.0)
        monkeypatch.setenv("VIME_TEST_KEY", "another")
        with pytest.raises(ServerError, match=r"refuses the key .*environment variable VIME_TEST_KEY"):
            await until_answering(endpoint, timeout_seconds=5.0)


async def test_an_endpoint_that_only_a_proxy_reaches_answers_by_the_proxy(monkeypatch, tmp_path):
    asked: list[tuple[str, str | None]] = []

    async def proxy(request: web.BaseRequest) -> web.StreamResponse:
        asked.append((str(request.url), request.headers.get("authorization")))
        return web.json_response({}) if request.method == "GET" else answer()

    server = web.Server(proxy)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "netrc").write_text("machine judge.invalid login somebody password else")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with scripted(monkeypatch, answer) as (local, requests):
        away = replace(local, url="http://judge.invalid/v1", worker_urls=("http://judge.invalid/v1",))
        for endpoint in (away, local):
            await until_answering(endpoint, timeout_seconds=10)
            client = ChatClient(endpoint, ServingConfig())
            await client.chat(MESSAGES, max_tokens=9)
            await client.close()
        assert len(requests) == 1  # this machine's is asked directly
    await runner.cleanup()
    assert asked == [(f"http://judge.invalid/v1/{route}", f"Bearer {KEY}") for route in ("models", "chat/completions")]
