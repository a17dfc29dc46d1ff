"""The token client against a scripted server, and against a real one where the server's own words matter."""

import asyncio
import base64
import contextlib
import functools
import io
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

import vime.serving.client
from vime.config import ServingConfig
from vime.errors import ServerError
from vime.files.serialization import from_json, to_json
from vime.serving.client import BadRequestError, TokenClient
from vime.serving.topology import Endpoint
from vime.types import RoutedExperts, Turn

SAMPLING = {"temperature": 1.0, "max_tokens": 2}


def event(
    tokens: list[int],
    *,
    finish_reason: str | None = None,
    versions: list[tuple[str, int, int]] | None = None,
    experts: Any = None,
) -> bytes:
    spans = versions and [{"version": version, "start": start, "end": end} for version, start, end in versions]
    content = [{"token_id": token, "logprob": -0.5} for token in tokens]
    choice = {"token_ids": tokens, "finish_reason": finish_reason, "logprobs": {"content": content}, "weight_versions": spans}
    if experts is not None:
        file = io.BytesIO()
        np.save(file, experts)
        choice["routed_experts"] = base64.b64encode(file.getvalue()).decode()
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def answer(*, version: str = "3", finish_reason: str = "stop") -> web.Response:
    found = event([9, 2], finish_reason=finish_reason, versions=[("2", 0, 1), (version, 1, 2)])
    return web.Response(body=b": keep-alive\n\n" + found + b"data: [DONE]\n\n", content_type="text/event-stream")


@contextlib.asynccontextmanager
async def scripted(*answers: Any, **serving: Any) -> AsyncIterator[tuple[TokenClient, list[Any]]]:
    """A client of a server that gives these answers one after another, and the last one forever.

    "drop" closes the connection, a list sends its parts and then closes it, or with None at its end sends nothing more.
    """
    requests: list[Any] = []
    over = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append((request.headers.get("x-session-id"), await request.json()))
        reply = answers[min(len(requests), len(answers)) - 1]
        if reply == "drop":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return await stream(request, reply) if isinstance(reply, list) else reply()

    async def stream(request: web.Request, parts: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            if part is None:
                await over.wait()
            else:
                await response.write(part)
        assert request.transport is not None
        request.transport.close()
        return response

    async with served_by(handle) as url:
        endpoint = Endpoint(
            name="actor", url=url, worker_urls=(url,), model="actor", tokenizer="", max_model_len=16, trained=True
        )
        client = TokenClient(endpoint, ServingConfig(**{"recovery_timeout_seconds": 20.0, **serving}))
        yield client, requests
        over.set()
        await client.close()


@contextlib.asynccontextmanager
async def served_by(handle: Any) -> AsyncIterator[str]:
    """The address of a server whose requests for tokens `handle` answers."""
    app = web.Application()
    app.router.add_post("/inference/v1/generate", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
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
        lambda: answer(version="1"),
    ],
    ids=["dropped connection", "503", "old weights"],
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


class Heard:
    """Notes what it receives."""

    def __init__(self, *, num_pauses: int = 0) -> None:
        self.tokens: list[int] = []
        self.events: list[str] = []
        self._num_pauses = num_pauses

    def received(self, piece: Turn) -> None:
        assert len(piece.output_ids) == len(piece.logprobs) == len(piece.weight_versions)
        self.tokens += piece.output_ids
        self.events.append("tokens")

    def lost(self) -> None:
        self.events.append("lost")

    def is_paused(self) -> bool:
        self._num_pauses -= 1
        return self._num_pauses >= 0


async def test_after_a_loss_it_goes_on_from_what_was_received():
    heard, cut = Heard(), [event([9], versions=[("2", 0, 1)]), b"data: {torn"]
    last = lambda: web.Response(body=event([5, 2], finish_reason="stop", versions=[("3", 0, 2)]))  # noqa: E731
    aborted = lambda: web.Response(body=event([], finish_reason="abort"))  # noqa: E731
    async with scripted(cut, "drop", aborted, last) as (client, requests):
        sampling = {"temperature": 1.0, "max_tokens": 8, "min_tokens": 2}
        generation = await client.generate(
            [1], sampling=sampling, session_id="s", request_id="r", minimum_version=2, listener=heard
        )
    assert (generation.output_ids, generation.weight_versions) == ([9, 5, 2], [2, 3, 3])
    assert [body["token_ids"] for _, body in requests] == [[1], [1, 9], [1, 9], [1, 9]]
    asked = [body["sampling_params"] for _, body in requests]
    assert [(params["max_tokens"], params["min_tokens"]) for params in asked] == [(8, 2), (7, 1), (7, 1), (7, 1)]
    assert len({body["request_id"] for _, body in requests}) == 4
    assert heard.tokens == [9, 5, 2] and heard.events == ["tokens", "lost", "lost", "lost", "tokens"]
    assert client.calls.num_retries == 3 and client.calls.output_tokens == 3


@pytest.mark.parametrize("num_experts", [8, 300])
async def test_experts_of_each_token_come_once_and_a_wrong_number_of_them_is_a_loss(num_experts: int):
    rows = np.arange(7 * 4, dtype=np.uint8).reshape(7, 2, 2)
    cut = [event([9], versions=[("2", 0, 1)], experts=rows[:3]), b"data: {torn"]
    short = [event([5, 2], versions=[("2", 0, 2)], finish_reason="stop", experts=rows[3:4])]
    last = [event([5, 2], finish_reason="stop", versions=[("2", 0, 2)], experts=rows[3:5])]
    async with scripted(cut, short, last) as (client, requests):
        client._endpoint = replace(client._endpoint, num_experts=num_experts)
        about: dict[str, Any] = {"sampling": SAMPLING | {"max_tokens": 8}, "session_id": "s"}
        turn = await client.generate([1, 2, 3, 4], request_id="r", experts_from=1, **about)
        assert [body["sampling_params"]["routed_experts_prompt_start"] for _, body in requests] == [1, 4, 4]
        without = await client.generate([1, 2, 3, 4], request_id="q", **about)
        assert requests[-1][1]["sampling_params"]["routed_experts_prompt_start"] == 4 and without.routed_experts is None
    assert turn.output_ids == [9, 5, 2] and turn.routed_experts is not None
    assert turn.routed_experts == RoutedExperts(1, rows[:5])
    assert turn.routed_experts.rows_RLK.dtype == (np.uint8 if num_experts == 8 else np.uint16)
    assert Turn(**from_json(to_json(turn.to_dict(), compact=True))).routed_experts == turn.routed_experts


async def test_a_reply_with_a_seed_is_sampled_from_its_beginning_after_a_loss():
    heard, cut = Heard(), [event([9], versions=[("2", 0, 1)]), b"data: {torn"]
    whole = lambda: web.Response(body=event([9, 5], finish_reason="stop", versions=[("2", 0, 2)]))  # noqa: E731
    async with scripted(cut, whole) as (client, requests):
        sampling = {"temperature": 1.0, "max_tokens": 8, "seed": 5}
        generation = await client.generate([1], sampling=sampling, session_id="s", request_id="r", listener=heard)
    assert generation.output_ids == heard.tokens == [9, 5]
    asked = [(body["token_ids"], body["sampling_params"]["seed"], body["sampling_params"]["max_tokens"]) for _, body in requests]
    assert asked == [([1], 5, 8)] * 2


@pytest.mark.parametrize("seed", range(5))
async def test_wherever_a_reply_is_cut_no_token_is_sampled_twice_and_none_is_missing(seed: int):
    generator, sent = random.Random(seed), []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        first, size = len(body["token_ids"]), body["sampling_params"]["max_tokens"]
        response = web.StreamResponse()
        await response.prepare(request)
        done = 0
        while done < size:
            part = list(range(first + done, first + min(size, done + generator.randrange(1, 5))))
            done += len(part)
            reason = "length" if done == size and generator.random() < 0.7 else None
            labels = [("3", 0, done)] if generator.random() < 0.5 else None
            if reason is None and generator.random() < 0.3:  # in the middle of an event
                await response.write(event(part, versions=labels)[:-3])
                break
            sent.extend(part)
            await response.write(event(part, finish_reason=reason, versions=[("3", 0, done)] if reason else labels))
        assert request.transport is not None
        request.transport.close()
        return response

    async with scripted(answer) as (client, _), served_by(handle) as url:
        client._url = url
        sampling = {"temperature": 1.0, "max_tokens": 12}
        generation = await client.generate([0] * 4, sampling=sampling, session_id="s", request_id="r", minimum_version=3)
    assert generation.output_ids == list(range(4, 16)) == sent
    assert generation.weight_versions == [3] * 12 and generation.finish_reason == "length"


async def test_tokens_whose_version_was_not_told_before_the_loss_are_of_the_oldest_weights_they_can_be_of():
    heard, last = Heard(), lambda: web.Response(body=event([2], finish_reason="stop", versions=[("7", 0, 1)]))
    async with scripted([event([9, 8])], last) as (client, _):
        generation = await client.generate(
            [1], sampling={"max_tokens": 8}, session_id="s", request_id="r", minimum_version=4, listener=heard
        )
    assert (generation.output_ids, generation.weight_versions) == ([9, 8, 2], [4, 4, 7])
    assert heard.tokens == [9, 8, 2]


async def test_what_cannot_be_gone_on_from_is_sampled_again():
    sampling = {"max_tokens": 8, "presence_penalty": 0.5}
    async with scripted([event([9], versions=[("2", 0, 1)])], answer) as (client, requests):
        generation = await client.generate([1], sampling=sampling, session_id="s", request_id="r")
    assert generation.output_ids == [9, 2] and [body["token_ids"] for _, body in requests] == [[1], [1]]


async def test_a_server_that_is_silent_is_lost_and_what_it_sent_is_kept():
    last = lambda: web.Response(body=event([5, 2], finish_reason="stop", versions=[("3", 0, 2)]))  # noqa: E731
    async with scripted([event([9], versions=[("2", 0, 1)]), None], last, silence_timeout_seconds=0.2) as (client, requests):
        generation = await client.generate([1], sampling={"max_tokens": 8}, session_id="s", request_id="r")
    assert generation.output_ids == [9, 5, 2] and requests[1][1]["token_ids"] == [1, 9]


async def test_a_server_that_is_silent_because_it_gets_weights_is_not_lost():
    heard = Heard(num_pauses=4)
    async with scripted([event([9], versions=[("2", 0, 1)]), None], answer, silence_timeout_seconds=0.05) as (client, _):
        await client.generate([1], sampling={"max_tokens": 8}, session_id="s", request_id="r", listener=heard)
    assert heard.events[:2] == ["tokens", "lost"] and heard._num_pauses < 0, "it was lost only once the pauses were over"


async def test_a_request_that_is_cancelled_hands_over_what_came():
    heard = Heard()
    async with scripted([event([9, 8], versions=[("1", 0, 2)]), event([7]), None]) as (client, _):
        call = client.generate([1], sampling={"max_tokens": 8}, session_id="s", request_id="r", minimum_version=1, listener=heard)
        task = asyncio.create_task(call)
        while not heard.tokens:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # without the version of the last token, which is only told with the next
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert heard.tokens == [9, 8, 7]


async def test_a_server_that_stays_away_is_an_error_in_the_end():
    async with scripted(lambda: web.Response(status=503, text="no worker"), recovery_timeout_seconds=0.5) as (client, _):
        with pytest.raises(ServerError, match=r"no answer to r within 0 s .*status 503: no worker"):
            await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")


async def test_a_refused_request_is_not_sent_again():
    async with scripted(lambda: web.Response(status=400, text="no such token")) as (client, requests):
        with pytest.raises(BadRequestError, match="no such token"):
            await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")
    assert len(requests) == 1


async def test_a_request_that_is_refused_in_its_stream_is_not_sent_again_either():
    refusal = b'data: {"error": {"message": "no such option", "code": 400}}\n\n'
    async with scripted([refusal]) as (client, requests):
        with pytest.raises(BadRequestError, match="no such option"):
            await client.generate([1], sampling=SAMPLING, session_id="s", request_id="r")
    assert len(requests) == 1


async def test_more_tokens_than_the_model_has_positions_for_are_refused_before_they_are_sent():
    async with scripted(answer) as (client, requests):
        with pytest.raises(BadRequestError, match=r"15 prompt tokens and max_tokens=2 are 17, more than max_model_len=16"):
            await client.generate([1] * 15, sampling=SAMPLING, session_id="s", request_id="r")
    assert not requests


async def test_a_real_server_says_what_is_wrong_with_a_request(served):
    client = TokenClient(served["tied"].endpoint, served["tied"].config.serving)
    for wrong, name in (({"temperature": -1.0}, "temperature"), ({"logprobs": 500}, "logprobs")):
        with pytest.raises(BadRequestError, match=name):
            await client.generate([1], sampling={**wrong, "max_tokens": 2}, session_id="s", request_id="r")
    await client.close()


async def test_a_seed_gives_the_same_tokens_if_the_prompt_is_read_in_parts(served):
    """Prompts of more tokens than one step reads; without `vime.inside_vllm.cpu_seeds` they end the engine."""
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


async def test_a_reply_of_a_real_server_that_is_cut_goes_on_as_if_it_had_not_been(served):
    stack = served["untied"]
    sampling = {"temperature": 0.0, "max_tokens": 200, "ignore_eos": True}

    class Cutting(Heard):
        def received(self, piece: Turn) -> None:
            super().received(piece)
            if len(self.tokens) > 1 and client._session and "lost" not in self.events:
                connector: Any = client._session.connector
                for connection in connector._acquired:
                    connection.transport.abort()

    client, heard = TokenClient(stack.endpoint, stack.config.serving), Cutting()
    ask = functools.partial(client.generate, [7, 8, 9] * 20, sampling=sampling, session_id="s")
    cut = await ask(request_id="cut", listener=heard)
    whole = await ask(request_id="whole")
    await client.close()
    assert "lost" in heard.events and heard.tokens == cut.output_ids == whole.output_ids
    assert cut.logprobs == pytest.approx(whole.logprobs, abs=1e-4) and cut.weight_versions == whole.weight_versions
