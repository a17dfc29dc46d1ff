"""Several models at once, from one YAML, on real servers: a trained one, two frozen ones, and one that others run."""

import asyncio
from typing import Any

import aiohttp
import pytest

from vime.errors import ServerError
from vime.preflight.plan.models import serving
from vime.preflight.plan.planned_processes import placement_table
from vime.processes.secret import headers
from vime.rollout.context import Sampling
from vime.serving.client import TokenClient
from vime.serving.endpoint import Endpoint
from vime.serving.server_metrics import read_metrics
from vime.workers.worker import RolloutWorker

PROMPT = [72, 101, 108, 108, 111, 32] * 4


@pytest.fixture
def models(served: dict[str, Any]) -> Any:
    """The models that a hook would get, and the worker that makes them."""
    stack = served["untied"]
    worker = RolloutWorker(stack.config, stack.serving.endpoints())
    context = worker._served.context("session", sampling=Sampling(temperature=1.0, top_p=1.0), version=0)
    return worker, context.models


async def test_every_model_of_the_topology_answers_and_is_counted(models: Any):
    worker, by_name = models
    assert set(by_name) == {"actor", "reader", "critic", "judge"}
    messages = [{"role": "user", "content": "hello"}]
    turns = dict(zip(by_name, await asyncio.gather(*[model.chat(messages, max_tokens=8) for model in by_name.values()])))
    for name in ("actor", "reader", "critic"):
        assert 0 < len(turns[name].output_ids) <= 8 and len(turns[name].logprobs) == len(turns[name].output_ids)
    assert turns["judge"].output_ids == [] and isinstance(turns["judge"].text, str)
    assert turns["judge"].finish_reason in ("stop", "length")
    calls = await worker.calls()
    assert {name: call.num_requests for name, call in calls.items()} == dict.fromkeys(by_name, 1)
    assert calls["judge"].input_tokens == len(by_name["actor"].render(messages))
    spent = calls["judge"].input_tokens * 0.15e-6 + calls["judge"].output_tokens * 0.6e-6
    assert calls["judge"].dollars == pytest.approx(spent) and calls["actor"].dollars == 0
    assert {call.num_requests for call in (await worker.calls()).values()} == {0}
    with pytest.raises(ServerError, match="its tokens are not known"):
        by_name["judge"].render(messages)


async def test_speculation_changes_no_greedy_token(served: dict[str, Any], checkpoints: Any):
    """The reference is Hugging Face's greedy generation."""
    import torch
    from transformers import AutoModelForCausalLM

    stack = served["untied"]
    await stack.serving.metrics()
    client = TokenClient(stack.serving.endpoints()["reader"], stack.config.serving)
    sampling = {"temperature": 0.0, "max_tokens": 48, "ignore_eos": True}
    generation = await client.generate(PROMPT, sampling=sampling, session_id="s", request_id="greedy")
    await client.close()
    model = AutoModelForCausalLM.from_pretrained(checkpoints["tied"], dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(48):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert generation.output_ids == tokens[len(PROMPT) :]
    assert 0 < (await stack.serving.metrics())["serving/reader/draft_acceptance_rate"] <= 1


async def test_sessions_stay_on_their_replica_and_find_their_prompts_cached(served: dict[str, Any]):
    stack = served["untied"]
    client = TokenClient(stack.endpoint, stack.config.serving)
    await stack.serving.metrics()
    for turn in range(4):
        for session in range(4):
            prompt = [session, *range(5, 196)]
            await client.generate(prompt, sampling={"max_tokens": 2}, session_id=f"affine{session}", request_id=f"{turn}")
    await client.close()
    metrics = await stack.serving.metrics()
    attainable = 3 / 4 * 160 / 192  # from the second turn on all whole blocks of 32, but the last token is always computed
    assert metrics["serving/actor/prefix_hit_rate"] == pytest.approx(attainable, abs=1e-3)
    assert metrics["serving/actor/queue_seconds"] >= 0 and metrics["serving/actor/num_waiting"] == 0


async def test_a_finished_session_makes_room_on_its_server(served: dict[str, Any]):
    stack = served["untied"]
    servers: list[int] = []

    async def open_session(client: TokenClient) -> int:
        before = await num_requests(stack.endpoint)
        session = f"finished{len(servers)}"
        await client.generate(PROMPT, sampling={"max_tokens": 1}, session_id=session, request_id=session)
        while (after := await num_requests(stack.endpoint)) == before:  # a server counts a request after it has answered
            await asyncio.sleep(0.01)
        servers.append(next(place for place, (first, last) in enumerate(zip(before, after)) if last > first))
        return servers[-1]

    client = TokenClient(stack.endpoint, stack.config.serving)
    while min(servers.count(0), servers.count(1)) < 3 or servers[-1] == servers[-2]:  # until both have as many, or one more
        assert len(servers) < 200
        await open_session(client)
    emptied = servers[-1]
    for number in [number for number, place in enumerate(servers) if place == emptied][:3]:
        client.finish(f"finished{number}")
    await client.close()
    client = TokenClient(stack.endpoint, stack.config.serving)
    assert [await open_session(client), await open_session(client)] == [emptied, emptied]
    await client.close()


async def num_requests(endpoint: Endpoint) -> list[float]:
    """Requests that each server has had so far."""
    async with aiohttp.ClientSession(headers=headers(endpoint.secret)) as session:
        found = [await read_metrics(session, url) for url in endpoint.worker_urls]
    return [metrics.num_queued if metrics is not None else 0.0 for metrics in found]


def test_the_plan_shows_the_topology(served: dict[str, Any]):
    config = served["untied"].config
    lines = serving(config)
    assert len(lines) == 4
    assert "trained" in lines[0] and "2 × actor" in lines[0] and "router sticky_least_loaded" in lines[0]
    assert "frozen" in lines[1] and "ngram" in lines[1]
    assert "1 running server" in lines[2]
    assert "key from OPENAI_API_KEY, 600 requests a minute" in lines[3] and "$0.15 and $0.6 per million" in lines[3]
    names = [str(cell) for cell in placement_table(config).columns[0].cells]
    assert [name for name in names if "trainer" not in name] == [
        *("server actor-0", "server actor-1", "server reader-0", "router actor", "external critic", "external judge"),
    ]
