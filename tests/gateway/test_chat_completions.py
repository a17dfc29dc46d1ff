"""The gateway over Chat Completions, with OpenAI's own client and Qwen3's tokenizer; the model's replies are scripted."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from backports import zstd
from openai import APIConnectionError, APIStatusError, BadRequestError

from tests.gateway.scripted import Asked, user
from vime.chat.reply_reader import ReplyReader, unread_calls
from vime.errors import ConfigError, SampleError, ServerError
from vime.gateway.gateway import MOST_BODY_BYTES, Gateway
from vime.gateway.session import Limits
from vime.gateway.session_manager import Parsers, SessionManager
from vime.types import Sample

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

TOOLS: Any = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]
CALLS = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "search", "arguments": {"query": "früh 😀"}}\n</tool_call><|im_end|>'
)


async def streamed(chunks: Any) -> Any:
    """The message that a stream adds up to, and its last chunk."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    last = None
    async for chunk in chunks:
        last = chunk
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.function.name:
                    function = {"name": call.function.name, "arguments": ""}
                    message["tool_calls"].append({"id": call.id, "type": "function", "function": function})
                message["tool_calls"][call.index]["function"]["arguments"] += call.function.arguments or ""
    return message, last


@pytest.mark.parametrize("stream", [False, True])
async def test_three_turns_with_tools_are_one_sequence_of_exactly_the_sampled_tokens(opened: Callable[..., Asked], stream: bool):
    asked = opened(CALLS, CALLS, "<think>\n</think>Ada.<|im_end|>")
    messages = [{"role": "system", "content": "You are terse."}, user("Who?")]
    for number in range(3):
        found = await asked.ask(*messages, tools=TOOLS, stream=stream)
        if stream:
            message, _ = await streamed(found)
        else:
            message = found.choices[0].message.to_dict()
            assert found.choices[0].finish_reason == ("tool_calls" if number < 2 else "stop")
        calls = message.get("tool_calls") or []
        assert [json.loads(call["function"]["arguments"])["query"] for call in calls] == ["Ada", "früh 😀"] * (number < 2)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"found {number}"} for call in calls]
        messages = [*messages, message, *reversed(results)]
    assert message["content"] == "Ada."
    text = asked.model.tokenizer.decode(asked.model.prompts[2])
    assert text.count(CALLS) == 2 and text.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert len(asked.audit()) == 1


async def test_the_whole_answer_says_what_it_cost_and_shows_its_reasoning_and_logprobs(opened: Callable[..., Asked]):
    asked = opened(CALLS)
    found = await asked.ask(user("Who?"), tools=TOOLS, logprobs=True)
    choice, turn = found.choices[0], asked.model.turns[0]
    assert choice.message.model_extra["reasoning_content"] == "\nHm.\n" and choice.message.content.strip() == "Let me see."
    assert found.usage.completion_tokens == len(turn.output_ids) and found.usage.prompt_tokens == len(asked.model.prompts[0])
    assert [token.logprob for token in choice.logprobs.content] == list(turn.logprobs)


async def test_a_stream_ends_with_its_reason_and_the_usage_that_was_asked_for(opened: Callable[..., Asked]):
    asked = opened("</think>one two three four five<|im_end|>", "</think>one<|im_end|>")
    chunks = await asked.ask(user("1?"), stream=True, max_tokens=4, stream_options={"include_usage": True})
    reasons: list[str] = []
    usage: Any = None
    async for chunk in chunks:
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        usage = chunk.usage or usage
    assert reasons == ["length"] and usage.completion_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_those_that_were_read_and_sampled(opened: Callable[..., Asked], stream: bool):
    asked = opened("</think>one two<|im_end|>", "</think>three<|im_end|>", "</think>four<|im_end|>")
    found = await asked.ask(user("1?"), n=2, stream=stream, extra_body={"return_token_ids": True})
    if stream:
        chunks = [chunk.to_dict() async for chunk in found]
        assert "prompt_token_ids" in chunks[0] and not any("prompt_token_ids" in chunk for chunk in chunks[1:])
        prompt, choices = chunks[0]["prompt_token_ids"], {}
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            choices[choice["index"]] = choice
    else:
        prompt, choices = found.to_dict()["prompt_token_ids"], {choice.index: choice.to_dict() for choice in found.choices}
    assert [prompt, prompt] == asked.model.prompts
    for choice in choices.values():
        assert choice["token_ids"] in [list(turn.output_ids) for turn in asked.model.turns]
        assert choice["weight_versions"] == [1] * len(choice["token_ids"])
    assert choices[0]["token_ids"] != choices[1]["token_ids"]
    plain = (await asked.ask(user("1?"))).to_dict()
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0], "not without being asked"


async def test_answers_to_one_request_are_siblings_and_so_are_equal_requests(opened: Callable[..., Asked]):
    asked = opened(*(f"</think>answer {number}<|im_end|>" for number in range(5)))
    found = await asked.ask(user("1?"), n=3)
    assert sorted(choice.message.content or "" for choice in found.choices) == ["answer 0", "answer 1", "answer 2"]
    for _ in range(2):
        await asked.ask(user("1?"))
    assert len(asked.audit()) == 5 and len({tuple(prompt) for prompt in asked.model.prompts}) == 1


async def test_a_stop_text_ends_the_answer_before_it(opened: Callable[..., Asked]):
    asked = opened("</think>one END two<|im_end|>", "</think>one END two<|im_end|>")
    assert (await asked.ask(user("1?"), stop="END")).choices[0].message.content == "one "
    message, _ = await streamed(await asked.ask(user("1?"), stop=["END"], stream=True))
    assert message["content"] == "one "


async def test_a_retry_of_a_lost_connection_gets_the_same_turn(opened: Callable[..., Asked]):
    asked = opened("</think>one two three four five six seven<|im_end|>", "</think>other<|im_end|>")
    asked.model.go.clear()
    chunks = await asked.ask(user("1?"), stream=True)
    await chunks.__anext__()
    await chunks.close()  # the client gives up in the middle of its stream
    await asyncio.sleep(0.1)
    asked.model.go.set()
    message, _ = await streamed(await asked.ask(user("1?"), stream=True))
    assert message["content"] == "one two three four five six seven"
    assert len(asked.model.turns) == 1 and asked.session.counts["retries"] == 1
    again = await asked.ask(user("1?"), stream=True, extra_headers={"x-stainless-retry-count": "1"})
    assert (await streamed(again))[0] == message, "the client says that it is a retry"
    assert (await streamed(await asked.ask(user("1?"), stream=True)))[0]["content"] == "other"
    asked.audit()


async def test_an_answer_that_nobody_got_is_not_trained(opened: Callable[..., Asked]):
    asked = opened("</think>one two three<|im_end|>")
    asked.model.go.clear()
    with pytest.raises(APIConnectionError):
        await asyncio.wait_for(asked.client.with_options(timeout=0.2).chat.completions.create(model="", messages=[user("?")]), 5)
    asked.model.go.set()
    await asyncio.sleep(0.1)
    assert asked.session.samples(Sample()) == [] and len(asked.model.turns) == 1


async def test_what_cannot_be_honoured_is_refused_with_a_message_that_the_client_shows(opened: Callable[..., Asked]):
    asked = opened(refuses=True)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    for messages, options, words in (
        ([image], {}, "messages[0].content: parts of type 'image_url' are not supported"),
        ([user("?")], {"tools": TOOLS, "tool_choice": "required"}, "tool_choice: this model is being trained"),
        ([user("?")], {"response_format": {"type": "json_object"}}, "response_format: this model is being trained"),
        ([user("word " * 3000)], {}, "prompt is too long"),
        ([user("?")], {"n": 0}, "n must be between 1 and 128, not 0"),
    ):
        with pytest.raises(BadRequestError) as raised:
            await asked.ask(*messages, **options)
        assert words in raised.value.message
    assert asked.model.prompts == []


async def test_a_session_ends_at_its_limit_and_with_its_block(opened: Callable[..., Asked], gateway: Gateway):
    asked = opened("</think>one<|im_end|>", "</think>two<|im_end|>", limits=Limits(num_calls=1))
    await asked.ask(user("1?"))
    with pytest.raises(BadRequestError, match="limit of 1 calls"):
        await asked.ask(user("2?"))
    gateway.close(asked.session)
    with pytest.raises(BadRequestError, match="no such session"):
        await asked.ask(user("3?"))
    asked.audit()


async def test_an_agent_that_never_calls_is_named(opened: Callable[..., Asked]):
    with pytest.raises(SampleError, match="made no call to actor"):
        opened().session.samples(Sample())


@pytest.mark.parametrize("error", [ServerError("gone"), RuntimeError("a bug")])
async def test_a_call_that_cannot_be_answered_loses_the_attempt_whatever_the_agent_does(
    opened: Callable[..., Asked], error: Exception
):
    asked = opened("</think>one<|im_end|>", "")
    await asked.ask(user("1?"))
    asked.model.error = error
    with pytest.raises(APIStatusError):
        await asked.ask(user("2?"))
    with pytest.raises(type(error), match=str(error)):
        asked.session.samples(Sample())


async def test_tools_that_no_reply_could_call_end_the_run(opened: Callable[..., Asked], tokenizer: Any):
    for parser, words in ((None, "there is no parser"), ("qwen3_coder", "does not read the calls")):
        other = ReplyReader(tokenizer, tool_parser=parser)
        other.unread = unread_calls(tokenizer, {}, other) if parser else ""
        asked = opened("</think>one<|im_end|>", other_reader=other)
        await asked.ask(user("1?"))
        with pytest.raises(BadRequestError, match=words):
            await asked.ask(user("1?"), tools=TOOLS)
        with pytest.raises(ConfigError, match=r"model\.tool_parser"):
            asked.session.samples(Sample())


async def test_parsers_that_do_not_fit_the_model_are_named(opened: Callable[..., Asked]):
    sessions = SessionManager({"actor": Parsers(tool_parser="mistral")})
    with pytest.raises(ConfigError, match=r"model\.tool_parser=mistral"):
        await sessions.reader(opened().session.model)


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}])
def test_parsers_that_fit_read_what_the_template_writes(tokenizer: Any, arguments: dict[str, Any]):
    reader = ReplyReader(tokenizer, tool_parser="hermes", reasoning_parser="qwen3", template_args=arguments)
    assert unread_calls(tokenizer, arguments, reader) == ""


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd.compress)])
async def test_a_compressed_body_is_unpacked_up_to_the_limit_of_bodies(
    opened: Callable[..., Asked], encoding: str, compress: Callable[[bytes], bytes]
):
    asked = opened("</think>one<|im_end|>")
    url, headers = f"{asked.session.openai_url}/chat/completions", {"Content-Encoding": encoding}
    asking = json.dumps({"messages": [user("1?")]}).encode()
    async with aiohttp.ClientSession() as session:
        async with session.post(url, data=compress(asking), headers=headers) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "one"
        for body, status in ((compress(b" " * (MOST_BODY_BYTES + 1)), 413), (b"no such format", 400)):
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == status
    asked.audit()


async def test_nothing_that_a_client_sends_breaks_the_gateway(opened: Callable[..., Asked], gateway: Gateway):
    asked = opened("</think>one<|im_end|>")
    bodies: list[Any] = [b"", b"{", b"[]", b'"x"', b"\xff", {}, {"messages": 3}, {"messages": [3]}, {"messages": [{}]}]
    roles = [{"role": "user", "content": 3}, {"role": "tool", "tool_call_id": 3}, {"role": "assistant", "tool_calls": [3]}]
    bodies += [{"messages": [message]} for message in roles]
    bodies += [{"messages": [user("?")], **more} for more in ({"n": "x"}, {"tools": [3]}, {"stop": 3}, {"max_tokens": -1})]
    url = f"{asked.session.openai_url}/chat/completions"
    async with aiohttp.ClientSession() as session:
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with session.post(url, data=data) as response:
                assert response.status == 400 and (await response.json())["error"]["message"], body
        for path in ("/pause", "/v1/completions", "/update_weights", "/metrics"):
            async with session.post(f"{asked.session.url}{path}") as response:
                assert response.status == 404
    assert (await asked.ask(user("1?"))).choices[0].message.content == "one"
    asked.audit()


@pytest.mark.parametrize("reasoning_parser", [None, "qwen3"])
async def test_where_nothing_is_trained_a_client_may_constrain_what_is_sampled(
    opened: Callable[..., Asked], tokenizer: Any, reasoning_parser: str | None
):
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>'
    reader = ReplyReader(tokenizer, tool_parser="hermes", reasoning_parser=reasoning_parser)
    asked = opened('{"x": 1}<|im_end|>', f"{call}<|im_end|>", constrains=True, other_reader=reader)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = await asked.ask(user("?"), response_format=form)
    assert found.choices[0].message.content == '{"x": 1}' and not found.usage.completion_tokens_details.reasoning_tokens
    assert asked.model.constraints[0] == {"json": schema}
    found = await asked.ask(user("?"), tools=TOOLS, tool_choice="required")
    assert found.choices[0].finish_reason == "tool_calls" and found.choices[0].message.tool_calls
    assert "search" in str(asked.model.constraints[1])
    wrong: Any = {"type": "json_schema", "json_schema": {"name": 3}}
    with pytest.raises(BadRequestError, match="vLLM refuses"):
        await asked.ask(user("?"), response_format=wrong)


async def test_agents_of_one_session_that_name_themselves_have_conversations_of_their_own(opened: Callable[..., Asked]):
    asked = opened(*(f"<think>\n</think>{text}<|im_end|>" for text in ("left", "right", "more left", "more right")), fork=False)
    names = ("planner", "solver")
    said = dict[str, list[Any]]((name, [{"role": "user", "content": "Go."}]) for name in names)
    for _ in range(2):  # equal messages, turn by turn
        for name in names:
            reply = await asked.ask(*said[name], extra_headers={"X-Session-ID": name})
            said[name] += [{"role": "assistant", "content": reply.choices[0].message.content}, {"role": "user", "content": "On."}]
    samples = asked.audit()
    assert [(each.metadata["caller"], each.metadata["kind"]) for each in samples] == [("planner", "main"), ("solver", "main")]
    assert ["more left" in samples[0].response, "right" in samples[0].response] == [True, False]
    statistics = asked.session.statistics()
    assert statistics["sequences"] == 2 and not any(name.startswith("fork_") for name in statistics)
    await asked.ask({"role": "user", "content": "Go."}, extra_headers={"X-Session-ID": "planner", "x-stainless-retry-count": "1"})
    assert asked.session.counts["retries"] == 1 and len(asked.audit()) == 2, "a retry is that of its own caller"
