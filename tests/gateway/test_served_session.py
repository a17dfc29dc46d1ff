"""Sessions over a real server: samples are as natively; a lost server, new weights and a closed gate are pauses of a stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from vime.chat.agent_clock import AgentClock
from vime.chat.served_model import ServedModel
from vime.chat.traffic import Traffic
from vime.gateway.session import AgentSession
from vime.gateway.session_manager import SessionManager
from vime.serving.client import TokenClient
from vime.types import Sample

QUESTIONS = ("Who owns Halin?", "früh 😀", "And who else?")
NUM_TRIES = 8
"""A short answer may be complete before the weights have changed."""


@pytest_asyncio.fixture
async def model(served: dict[str, Any]) -> AsyncIterator[ServedModel]:
    """A greedy model of a real server that holds its trainer's weights."""
    from vime.model.load_tokenizer import load_tokenizer

    stack = served["tied"]
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    client = TokenClient(stack.endpoint, stack.config.serving)
    yield ServedModel(
        client=client,
        tokenizer=load_tokenizer(stack.endpoint.tokenizer),
        max_model_len=stack.endpoint.max_model_len,
        temperature=0.0,
        top_p=1.0,
        session="s",
        minimum_version=stack.trainer.version,
    )
    await client.close()


async def play(session: AgentSession, *, stream: bool) -> None:
    """An agent of three turns, by OpenAI's client."""
    client = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret, max_retries=0)
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        asked: Any = {"model": "policy", "messages": messages, "max_tokens": 24}
        if stream:
            chunks = await client.chat.completions.create(**asked, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        else:
            text = (await client.chat.completions.create(**asked)).choices[0].message.content
        messages.append({"role": "assistant", "content": text})
    await client.close()


async def stopped(clock: AgentClock, answer: "asyncio.Task[Any]") -> float:
    """Waits until a clock is stopped, or the answer is there; returns the seconds that the clock shows."""
    seconds = -1.0
    while clock.seconds != seconds and not answer.done():
        seconds = clock.seconds
        await asyncio.sleep(0.01)
    return seconds


async def test_an_agent_gives_the_same_samples_natively_and_over_http(model: ServedModel):
    first, *more = ({"role": "user", "content": question} for question in QUESTIONS)
    conversation = model.conversation([first])
    await conversation.reply(max_tokens=24)
    for question in more:
        conversation.add(question)
        await conversation.reply(max_tokens=24)
    (native,) = conversation.samples(Sample())
    sessions = SessionManager()
    for stream in (False, True):
        async with sessions.open(model) as session:
            await play(session, stream=stream)
        (sample,) = session.samples(Sample())
        assert list(sample.tokens) == list(native.tokens) and list(sample.loss_mask) == list(native.loss_mask)
        assert sample.rollout_log_probs == pytest.approx(native.rollout_log_probs, abs=1e-4)
    await sessions.stop()


async def test_a_server_that_is_killed_in_the_middle_of_a_stream_is_a_pause_of_it(model: ServedModel, served: dict[str, Any]):
    stack = served["tied"]
    await stack.serving.events()
    model.sampling = {"ignore_eos": True}
    sessions, clock = SessionManager(), model.clock
    async with sessions.open(model) as session:
        client = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret, max_retries=0)
        asked: Any = {"model": "policy", "messages": [{"role": "user", "content": "?"}], "max_tokens": 400}
        pieces: list[str] = []
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            pieces.append(chunk.choices[0].delta.content or "")
            if len(pieces) == 3:
                before = clock.seconds
                keeper = psutil.Process(await stack.serving.actors("actor")["actor-0"].pid.remote())
                keeper.children()[0].children()[0].kill()
        assert clock.seconds - before < stack.config.serving.recovery_timeout_seconds
        await client.close()
    (sample,) = session.samples(Sample())
    sampled = list(sample.tokens)[-sample.response_length :]
    assert sum(sample.loss_mask) == 400 and "".join(pieces) == model.tokenizer.decode(sampled, skip_special_tokens=True)
    assert session.counts["calls"] == 1 and session.counts["retries"] == 0
    while not any(event["event"] == "recovered" for event in await stack.serving.events()):
        await asyncio.sleep(0.2)
    await sessions.stop()


async def test_new_weights_in_the_middle_of_a_stream_are_a_pause_of_it(model: ServedModel, served: dict[str, Any]):
    stack, sessions = served["tied"], SessionManager()
    model.sampling = {"ignore_eos": True}
    for _ in range(NUM_TRIES):
        pieces, changed = [], None
        async with sessions.open(model) as session:
            client = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret, max_retries=0)
            asked: Any = {"model": "policy", "messages": [{"role": "user", "content": "?"}], "max_tokens": 400}
            stack.trainer.step()
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                pieces.append(chunk.choices[0].delta.content or "")
                changed = changed or asyncio.create_task(stack.sync(stack.trainer.export()))
            await client.close()
        assert changed is not None
        await changed
        (sample,) = session.samples(Sample())
        sampled = list(sample.tokens)[-sample.response_length :]
        assert sum(sample.loss_mask) == 400 and "".join(pieces) == model.tokenizer.decode(sampled, skip_special_tokens=True)
        if len(set(sample.weight_versions)) == 2:
            break
    versions = list(sample.weight_versions)
    assert sorted(set(versions)) == [stack.trainer.version - 1, stack.trainer.version] and versions == sorted(versions)
    await sessions.stop()


async def test_a_gate_that_is_closed_in_the_middle_of_a_stream_is_a_pause_before_the_next_answer(
    model: ServedModel, served: dict[str, Any]
):
    stack, sessions, traffic = served["tied"], SessionManager(), Traffic()
    model.sampling, model.traffic = {"ignore_eos": True}, traffic
    async with sessions.open(model) as session:
        client = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "?"}]
        asked: Any = {"model": "policy", "max_tokens": 200}
        first, holding = "", None
        async for chunk in await client.chat.completions.create(**asked, messages=messages, stream=True):
            first += chunk.choices[0].delta.content or ""
            holding = holding or asyncio.create_task(traffic.hold(60.0))
        assert holding is not None and await holding, "calls in flight end before the weights change"
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And?"}]
        answer = asyncio.create_task(client.chat.completions.create(**asked, messages=messages))
        seconds = await stopped(model.clock, answer)
        stack.trainer.step()
        await stack.sync(stack.trainer.export())
        assert not answer.done() and model.clock.seconds == seconds
        traffic.release()
        second = (await answer).choices[0].message.content or ""
        await client.close()
    (sample,) = session.samples(Sample())
    sampled = [token for token, mask in zip(list(sample.tokens)[-sample.response_length :], sample.loss_mask) if mask]
    texts = [model.tokenizer.decode(part, skip_special_tokens=True) for part in (sampled[:200], sampled[200:])]
    assert len(sampled) == 400 and texts == [first, second]
    versions = [version for version, mask in zip(sample.weight_versions, sample.loss_mask) if mask]
    assert versions == [stack.trainer.version - 1] * 200 + [stack.trainer.version] * 200
    assert session.counts["calls"] == 2 and session.counts["retries"] == 0
    await sessions.stop()
