"""Agent loops outside a run: OpenAI's and Anthropic's own clients, each session under its API key."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from agentic.integrations.adapters import Adapter, AnthropicAdapter, OpenAIAdapter
from tests.qwen3_tokenizer import qwen3_tokenizer
from tests.serving.test_client import served_by
from vime.types import Sample

ANSWER = "Paris.<|im_end|>"


@pytest_asyncio.fixture(params=[OpenAIAdapter, AnthropicAdapter])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Adapter, str, list[dict[str, Any]]]]:
    """An adapter, its address, and the requests that its model got."""
    tokenizer, asked = qwen3_tokenizer(), []
    ids = tokenizer.encode(ANSWER, add_special_tokens=False)

    async def answer(http: web.Request) -> web.Response:
        asked.append(await http.json())
        content = [{"token_id": token, "logprob": -0.5} for token in ids]
        choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}, "weight_versions": None}
        return web.Response(body=b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\ndata: [DONE]\n\n")

    async with served_by(answer) as url:
        adapter = request.param(tokenizer=tokenizer, vllm_url=url)
        runner = web.AppRunner(adapter.app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield adapter, f"http://127.0.0.1:{runner.addresses[0][1]}", asked
        await adapter.close()
        await runner.cleanup()


async def ask(adapter: Adapter, url: str, key: str) -> str | None:
    """One question by the client that the adapter is for."""
    message: Any = {"role": "user", "content": "Capital of France?"}
    if isinstance(adapter, OpenAIAdapter):
        import openai

        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            found = await client.chat.completions.create(model="actor", messages=[message], max_tokens=7)
        return found.choices[0].message.content
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        reply = await client.messages.create(model="actor", messages=[message], max_tokens=7)
    return "".join(part.text for part in reply.content if part.type == "text")


async def test_each_session_is_recorded_under_its_key(served: tuple[Adapter, str, list[dict[str, Any]]]):
    adapter, url, asked = served
    for key in ("one", "two"):
        adapter.open_session(key, sampling_defaults={"temperature": 0.6})
    with pytest.raises(ValueError, match="'one' is open already"):
        adapter.open_session("one")
    assert await ask(adapter, url, "one") == "Paris."
    assert asked[0]["sampling_params"]["temperature"] == 0.6
    (sample,) = await adapter.finish_session("one", base_sample=Sample(index=4), reward=1.0)
    assert (sample.index, sample.reward) == (4, 1.0)
    assert sample.tokens == asked[0]["token_ids"] + qwen3_tokenizer().encode(ANSWER, add_special_tokens=False)
    assert sum(sample.loss_mask or []) == sample.response_length == len(sample.tokens) - len(asked[0]["token_ids"])
    assert await adapter.finish_session("one") == []


async def test_a_key_without_a_session_reaches_no_model(served: tuple[Adapter, str, list[dict[str, Any]]]):
    adapter, url, asked = served
    adapter.open_session("one")
    await adapter.drop_session("one")
    with pytest.raises(Exception, match="there is no such session"):
        await ask(adapter, url, "one")
    assert asked == []
