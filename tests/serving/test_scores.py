"""Scores of finished sequences: those of a real server are the model's, and an answer about anything else is a loss."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web

from tests.serving.test_client import scripted
from vime.errors import BadRequestError, ServerError
from vime.serving.client import TokenClient
from vime.serving.reply import TooOld
from vime.serving.scores import Scores

TOKENS = [5, 9, 2]


def answer(*places: Any, version: str = "3") -> Any:
    choice = {"token_ids": [7], "weight_versions": [{"version": version, "start": 0, "end": 1}]}
    body = {"prompt_logprobs": [None, *places], "choices": [choice]}
    return lambda: web.Response(body=json.dumps(body).encode(), content_type="application/json")


def place(**logprobs: float) -> dict[str, Any]:
    return {name.removeprefix("t"): {"logprob": value, "rank": 1, "decoded_token": "x"} for name, value in logprobs.items()}


GOOD = answer(place(t9=-0.5, t4=-0.25, t7=-3.0), place(t2=-0.125))
BAD: dict[str, Any] = {
    "another length": answer(place(t9=-0.5)),
    "other tokens": answer(place(t8=-0.5), place(t2=-0.125)),
    "no logprobs": lambda: web.Response(body=b'{"prompt_logprobs": null}'),
    "no JSON": lambda: web.Response(body=b"<html>"),
    "no server behind the router": lambda: web.Response(status=503, text="no worker"),
    "old weights": answer(place(t9=-1.5), place(t2=-1.5), version="2"),
    "weights that no sync has sent": answer(place(t9=-1.5), place(t2=-1.5), version="random"),
    "dropped": "drop",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_wrong_answer_is_asked_for_again(name: str):
    async with scripted(BAD[name], GOOD) as (client, requests):
        found = await client.score(TOKENS, num_likeliest=2, session_id="s", request_id="r", minimum_version=3)
    assert found.logprobs.tolist() == [-0.5, -0.125]
    assert found.ids.tolist() == [[4, 9], [2, -1]] and found.likeliest.tolist() == [[-0.25, -0.5], [-0.125, -np.inf]]
    assert len({body["request_id"] for _, body in requests}) == 2 and requests[0][1]["token_ids"] == TOKENS
    assert (client.calls.num_requests, client.calls.num_retries, client.calls.input_tokens) == (1, 1, 3)


@pytest.mark.parametrize("name", BAD)
async def test_an_answer_that_stays_wrong_is_a_lost_server_with_its_reason(name: str):
    async with scripted(BAD[name], recovery_timeout_seconds=0.3) as (client, _):
        with pytest.raises(ServerError, match="gave no answer to r"):
            await client.score(TOKENS, session_id="s", request_id="r", minimum_version=3)
    assert client.calls.num_failures == 1


def test_versions_are_those_of_the_adapter():
    body = json.loads(answer(place(t9=-0.5), place(t2=-0.125), version="actor:4 other:9")().body)
    about = {"token_ids": np.array(TOKENS), "num_likeliest": 0, "adapter": "actor"}
    assert Scores.of(json.dumps(body).encode(), minimum_version=4, **about).logprobs.tolist() == [-0.5, -0.125]
    with pytest.raises(TooOld, match="version 4, wanted is 5"):
        Scores.of(json.dumps(body).encode(), minimum_version=5, **about)


async def test_silence_during_a_sync_is_explained():
    async with scripted([None], silence_timeout_seconds=0.05) as (client, requests):
        asked = asyncio.create_task(client.score(TOKENS, session_id="s", request_id="r", is_paused=lambda: True))
        await asyncio.sleep(0.3)
        assert not asked.done() and len(requests) == 1
        asked.cancel()


async def test_a_server_that_never_answers_is_lost():
    async with scripted([None], GOOD, silence_timeout_seconds=0.2) as (client, _):
        found = await client.score(TOKENS, session_id="s", request_id="r")
    assert found.logprobs.tolist() == [-0.5, -0.125]


async def test_a_sequence_that_does_not_fit_or_is_refused_is_not_sent_again():
    async with scripted(lambda: web.Response(status=400, text="no such token")) as (client, requests):
        with pytest.raises(BadRequestError, match="more than max_model_len=16"):
            await client.score([1] * 16, session_id="s", request_id="r")
        with pytest.raises(BadRequestError, match="no such token"):
            await client.score(TOKENS, session_id="s", request_id="r")
    assert len(requests) == 1


async def test_scores_of_a_real_server_are_the_models_at_temperature_one(served: Any):
    stack, tokens = served["tied"], [(11 * number) % 250 for number in range(700)]
    client = TokenClient(stack.endpoint, stack.config.serving)
    try:
        found = await client.score(tokens, num_likeliest=8, session_id="s", request_id="r")
        alone = await client.score(tokens, session_id="s", request_id="r", minimum_version=stack.trainer.version)
    finally:
        await client.close()
    with torch.no_grad():
        whole = stack.trainer.model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(1)
    own = whole.gather(1, torch.tensor(tokens[1:]).unsqueeze(1))[:, 0]
    for logprobs in (found.logprobs, alone.logprobs):
        torch.testing.assert_close(torch.from_numpy(logprobs), own, rtol=0, atol=2e-4)
    torch.testing.assert_close(torch.from_numpy(found.likeliest), whole.topk(8).values, rtol=0, atol=2e-4)
    torch.testing.assert_close(
        torch.from_numpy(found.likeliest), whole.gather(1, torch.from_numpy(found.ids).long()), rtol=0, atol=2e-4
    )
    assert alone.ids.shape == (699, 0)
