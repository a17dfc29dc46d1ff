"""One agent with tools, natively and over each protocol: at temperature 0 the same samples, token for token.

A real server serves ToolOrchestra's tiny orchestrator.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agentic.toolorchestra import prompts
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.offer import offer, question_schemas
from vime.agent.adapters import Adapter, AnthropicAdapter, OpenAIAdapter
from vime.gateway.chat import ChatRequest
from vime.gateway.reading import Reader
from vime.gateway.sessions import Parsers, Sessions
from vime.preflight.compose import compose_run
from vime.rollout.conversation import Conversation
from vime.rollout.model import ServedModel
from vime.serving.client import TokenClient
from vime.types import Sample

pytestmark = pytest.mark.slow

METHOD = ToolOrchestraConfig.of(compose_run(["+method=toolorchestra"]).config)
WORDING = prompts.SETS[METHOD.prompt_style]
TOOLS = question_schemas(offer(METHOD, "", seed=0))
QUESTIONS = ("What is the price of bread in Ashford ?", "How much is 7 + 12 ?", "What is the colour of Ashford ?")
NUM_TURNS, MAX_TOKENS = 4, 64
Call = tuple[str, str, dict[str, Any]]
"""The id, the name and the arguments of a tool call."""


def opening(question: str) -> list[Any]:
    return [
        {"role": "system", "content": WORDING.system},
        {"role": "user", "content": WORDING.question.format(question=question)},
    ]


def result(call: Call, turn: int) -> str:
    """What a tool returns: the same in all forms of the agent."""
    return f"{call[1]} {sorted(call[2])} {turn}: bread in Ashford costs {7 * turn}."


@pytest.fixture(scope="module")
def endpoint(ray_cluster: None, make_serving_config: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A server of the tiny orchestrator, and its configuration."""
    from vime.serving.topology import Serving
    from vime.weights.policy import Policy

    config = make_serving_config(Path("agentic/toolorchestra/tiny/orchestrator").resolve())
    config.model = compose_run(["+method=toolorchestra"]).config.model
    actor = config.serving.models["actor"]
    actor.trained, actor.checkpoint, actor.max_model_len = False, config.model.checkpoint, 1024
    actor.vllm_args = {}
    serving = Serving(config, tmp_path_factory.mktemp("orchestrator"), uuid.uuid4().hex[:8], policy=Policy(), secret=None)
    serving.start()
    try:
        asyncio.run(serving.ready())
        yield serving.endpoints()["actor"], config
    finally:
        asyncio.run(serving.stop())


@pytest_asyncio.fixture
async def model(endpoint: tuple[Any, Any]) -> AsyncIterator[ServedModel]:
    from vime.model.load_tokenizer import load_tokenizer

    found, config = endpoint
    client = TokenClient(found, config.serving)
    tokenizer, length = load_tokenizer(found.tokenizer), found.max_model_len
    yield ServedModel(client=client, tokenizer=tokenizer, max_model_len=length, temperature=0.0, top_p=1.0, session="s")
    await client.close()


async def natively(model: ServedModel, question: str) -> list[Sample]:
    reader = Reader(model.tokenizer, tool_parser="hermes")
    conversation = Conversation(model, opening(question), tools=TOOLS)
    for turn in range(NUM_TURNS):
        reply = await conversation.reply(max_tokens=MAX_TOKENS)
        reading = reader.begin(ChatRequest(messages=[], tools=TOOLS), reply.prompt_ids)
        reading.whole(reply.output_ids, stopped=reply.finish_reason == "stop")
        calls = [call["function"] for call in reading.message.get("tool_calls", [])]
        results = [result(("", call["name"], json.loads(call["arguments"])), turn) for call in calls]
        new: list[Any] = [{"role": "tool", "content": text} for text in results]
        conversation.add(new or [{"role": "user", "content": "Go on."}])
    return conversation.samples(Sample())


async def by_chat(session: Any, question: str, *, stream: bool) -> int:
    client, num_calls = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret), 0
    messages = opening(question)
    for turn in range(NUM_TURNS):
        asked: Any = {"model": "m", "messages": messages, "tools": TOOLS, "max_tokens": MAX_TOKENS}
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                reply = (await events.get_final_completion()).choices[0].message
        else:
            reply = (await client.chat.completions.create(**asked)).choices[0].message
        calls: list[Call] = [
            (call.id, call.function.name, json.loads(call.function.arguments)) for call in reply.tool_calls or []
        ]
        results = [{"role": "tool", "tool_call_id": call[0], "content": result(call, turn)} for call in calls]
        messages = [*messages, reply.to_dict(), *(reversed(results) if results else [{"role": "user", "content": "Go on."}])]
        num_calls += len(calls)
    await client.close()
    return num_calls


async def by_responses(session: Any, question: str, *, stream: bool) -> int:
    client, num_calls = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret), 0
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    items: Any = opening(question)
    for turn in range(NUM_TURNS):
        asked: Any = {"model": "m", "input": items, "tools": tools, "max_output_tokens": MAX_TOKENS}
        if stream:
            async with client.responses.stream(**asked) as events:
                output = (await events.get_final_response()).output
        else:
            output = (await client.responses.create(**asked)).output
        calls: list[Call] = [(i.call_id, i.name, json.loads(i.arguments)) for i in output if i.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call[0], "output": result(call, turn)} for call in calls]
        echoed = [item.to_dict() for item in output]
        items = [*items, *echoed, *(reversed(results) if results else [{"role": "user", "content": "Go on."}])]
        num_calls += len(calls)
    await client.close()
    return num_calls


async def by_messages(session: Any, question: str, *, stream: bool) -> int:
    client, num_calls = AsyncAnthropic(base_url=session.anthropic_url, api_key=session.secret), 0
    tools = [{**tool["function"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
    system, *messages = opening(question)
    for turn in range(NUM_TURNS):
        asked: Any = {"model": "m", "system": system["content"], "messages": messages, "tools": tools, "max_tokens": MAX_TOKENS}
        if stream:
            async with client.messages.stream(**asked) as events:
                content = (await events.get_final_message()).content
        else:
            content = (await client.messages.create(**asked)).content
        calls: list[Call] = [(block.id, block.name, block.input) for block in content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call[0], "content": result(call, turn)} for call in calls]
        user = {"role": "user", "content": [*reversed(results)] if results else "Go on."}
        messages = [*messages, {"role": "assistant", "content": content}, user]
        num_calls += len(calls)
    await client.close()
    return num_calls


@pytest.mark.parametrize("play", [by_chat, by_responses, by_messages])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_gives_the_same_samples_natively_and_over_http(
    model: ServedModel, play: Callable[..., Awaitable[int]], stream: bool
):
    sessions = Sessions({"actor": Parsers(tool_parser="hermes")})
    num_calls = 0
    for question in QUESTIONS:
        native = await natively(model, question)
        async with sessions.open(model) as session:
            num_calls += await play(session, question, stream=stream)
        samples = session.samples(Sample())
        assert [list(sample.tokens) for sample in samples] == [list(sample.tokens) for sample in native]
        assert [list(sample.loss_mask) for sample in samples] == [list(sample.loss_mask) for sample in native]
        for sample, other in zip(samples, native, strict=True):
            assert sample.rollout_log_probs == pytest.approx(other.rollout_log_probs, abs=1e-4)
    assert num_calls >= 6, "the tiny orchestrator calls its tools"
    await sessions.stop()


@pytest.mark.parametrize(
    ("make", "play"), [(OpenAIAdapter, by_chat), (OpenAIAdapter, by_responses), (AnthropicAdapter, by_messages)]
)
async def test_an_adapter_outside_a_run_gives_the_same_samples(
    model: ServedModel, endpoint: tuple[Any, Any], make: type[Adapter], play: Callable[..., Awaitable[int]]
):
    adapter = make(tokenizer=model.tokenizer, vllm_url=endpoint[0].url, tool_parser="hermes", max_turns_per_sid=NUM_TURNS)
    runner = web.AppRunner(adapter.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    adapter.open_session("sample-7", sampling_defaults={"temperature": 0.0}, max_context_tokens=1024)
    with pytest.raises(ValueError, match="is open already"):
        adapter.open_session("sample-7")
    await play(SimpleNamespace(openai_url=f"{url}/v1", anthropic_url=url, secret="sample-7"), QUESTIONS[0], stream=True)
    samples = await adapter.finish_session("sample-7", base_sample=Sample(group_index=3), reward=0.5, extra_metadata={"x": 1})
    native = await natively(model, QUESTIONS[0])
    assert [list(sample.tokens) for sample in samples] == [list(sample.tokens) for sample in native]
    assert [(sample.group_index, sample.reward, sample.metadata["x"]) for sample in samples] == [(3, 0.5, 1)] * len(samples)
    assert await adapter.finish_session("sample-7") == []
    with pytest.raises(Exception, match="no such session"):
        await play(SimpleNamespace(openai_url=f"{url}/v1", anthropic_url=url, secret="sample-7"), QUESTIONS[0], stream=False)
    await adapter.close()
    await runner.cleanup()


async def test_a_constrained_answer_of_a_frozen_model_has_the_form_that_was_asked_for(model: ServedModel):
    sessions = Sessions({"actor": Parsers(tool_parser="hermes")})
    form: Any = {"type": "json_schema", "json_schema": {"name": "town", "schema": {"enum": ["Ashford"]}}}
    tool: Any = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    }
    asked: Any = {"model": "m", "messages": opening("?"), "max_tokens": MAX_TOKENS}
    async with sessions.open(model, constrains=True) as session:
        client = AsyncOpenAI(base_url=session.openai_url, api_key=session.secret)
        found = await client.chat.completions.create(**asked, response_format=form)
        assert found.choices[0].message.content == '"Ashford"'
        found = await client.chat.completions.create(**asked, tools=[tool], tool_choice="required")
        begun = '<tool_call>\n{"name": "look", "arguments": {'  # which so small a model need not end
        assert found.choices[0].message.tool_calls or (found.choices[0].message.content or "").startswith(begun)
        await client.close()
    await sessions.stop()
