"""A thousand random agents over HTTP: each token of an answer that began to arrive is trained exactly once, behind the prompt
that the engine saw; no other token is trained; and no session sees another.

An agent goes on, asks again, asks for several answers, loses its connection and retries, forks, begins sub-agents beside itself,
shortens its history, sends results in any order, drops reasoning, and continues replies that were cut.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.gateway.scripted import Asked, Scripted, user
from vime.types import Sample

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

NUM_SESSIONS, AT_ONCE = 1000, 20
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]
WORDS = ("red", "früh 😀", "<think>", "  ", "\n\n", "42", "{", "</tool_call>", "answer")


def random_reply(rng: random.Random) -> str:
    """A possible reply of a model: reasoning or none, text, calls, and now and then a broken call."""
    words = [rng.choice(WORDS) for _ in range(rng.randrange(4))]
    calls = [json.dumps({"name": "search", "arguments": {"query": rng.choice(WORDS)}}) for _ in range(rng.choice((0, 0, 1, 2)))]
    written = "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls)
    broken = "\n<tool_call>\n{broken" if rng.random() < 0.05 else ""
    return f"{rng.choice(('<think>', ''))}\nHm.\n</think>\n\n{' '.join(words)}{written}{broken}<|im_end|>"


class RandomModel(Scripted):
    """Writes whatever comes."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        super().__init__(tokenizer, [])
        self.rng = random.Random(seed)

    async def complete(self, token_ids: Any, **options: Any) -> Any:
        self.replies.append(random_reply(self.rng))
        return await super().complete(token_ids, **options)


@dataclass(slots=True)
class Agent:
    """A client that knows what has arrived."""

    http: aiohttp.ClientSession
    url: str
    rng: random.Random
    arrived: set[int] = field(default_factory=set)
    """Numbers of the calls that have arrived at least in part, from the logprobs of their tokens."""

    async def ask(self, messages: list[Any], *, num_answers: int = 1) -> list[Any]:
        """The messages of the answers, or none if the agent has lost its connection for good."""
        is_streamed, max_tokens = self.rng.random() < 0.5, self.rng.choice((7, 300))
        body = {"messages": messages, "tools": TOOLS, "n": num_answers, "logprobs": True, "max_tokens": max_tokens}
        sent = json.dumps(body | {"stream": is_streamed}).encode()
        headers: dict[str, str] = {}
        if self.rng.random() < 0.1:
            async with self.http.post(self.url, data=sent) as response:
                response.close()
            if self.rng.random() < 0.5:
                return []
            headers = {"x-stainless-retry-count": "1"}
        async with self.http.post(self.url, data=sent, headers=headers) as response:
            assert response.status == 200, await response.text()
            if not is_streamed:
                choices = (await response.json())["choices"]
                self._note(choices)
                return [choice["message"] for choice in choices]
            lines = [line async for line in response.content]
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        self._note([choice for event in events for choice in event["choices"]])
        return [joined(events, place) for place in range(num_answers)]

    def _note(self, choices: list[Any]) -> None:
        for choice in choices:
            for token in (choice.get("logprobs") or {}).get("content", []):
                self.arrived.add(int(-token["logprob"]) // 1000)

    async def play(self, opening: list[Any], *, depth: int = 0) -> None:
        """A conversation of a few requests."""
        rng, messages = self.rng, list(opening)
        for _ in range(rng.randrange(1, 5)):
            answers = await self.ask(messages, num_answers=rng.choice((1, 1, 1, 2)))
            if rng.random() < 0.1:
                await self.ask(messages)
            if not answers:
                continue
            message = dict(rng.choice(answers))
            if rng.random() < 0.3:
                message.pop("reasoning_content", None)
            calls = message.get("tool_calls") or []
            results = [{"role": "tool", "tool_call_id": call["id"], "content": rng.choice(WORDS)} for call in calls]
            rng.shuffle(results)
            if not calls and rng.random() < 0.2 and (message.get("content") or "").strip():
                messages = [*messages, message]  # the reply itself is to go on
            else:
                messages = [*messages, message, *(results or [user(rng.choice(WORDS))])]
            if rng.random() < 0.1:
                messages = [opening[0], user("A summary.")]
            elif rng.random() < 0.1:
                messages = [*opening, user(rng.choice(WORDS))]
            if depth == 0 and rng.random() < 0.2:
                await asyncio.gather(*[self.play([user(f"Part {number}.")], depth=1) for number in range(2)])


def joined(events: list[Any], place: int) -> Any:
    """The message of one answer of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, Any] = {}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"] if choice["index"] == place else {}
            message["content"] += delta.get("content") or ""
            if delta.get("reasoning_content"):
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for part in delta.get("tool_calls") or ():
                function = part["function"]
                call = calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                call["id"] = part.get("id") or call.get("id")
                call["function"]["name"] += function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
    return message | ({"tool_calls": [calls[number] for number in sorted(calls)]} if calls else {})


def audit(samples: list[Sample], model: Scripted, arrived: set[int]) -> None:
    """Compares what is trained with what was sampled, and both with what arrived."""
    trained: list[tuple[int, int]] = []
    for sample in samples:
        sample.to_columns()
        sample.validate()
        tokens = list(sample.tokens)
        start = len(tokens) - sample.response_length
        for place, (mask, logprob) in enumerate(zip(sample.loss_mask, sample.rollout_log_probs, strict=True), start=start):
            if not mask:
                continue
            number, position = divmod(int(-logprob), 1000)
            assert tokens[: place - position] == model.prompts[number - 1], "the prompt is the one that the engine saw"
            assert tokens[place] == model.turns_by_number[number].output_ids[position]
            trained.append((number, position))
    assert len(trained) == len(set(trained)), "no token is trained twice"
    for number, turn in model.turns_by_number.items():
        found = sum(1 for trained_number, _ in trained if trained_number == number)
        assert found in (0, len(turn.output_ids)) and (found or number not in arrived or not turn.output_ids)


async def test_a_thousand_random_agents_train_each_token_that_arrived_once(opened: Callable[..., Asked]):
    places, counts = asyncio.Semaphore(AT_ONCE), {"samples": 0, "forks": 0, "retries": 0}
    connector = aiohttp.TCPConnector(limit=0)

    async def one(seed: int, http: aiohttp.ClientSession) -> None:
        async with places:
            asked = opened(model=lambda tokenizer: RandomModel(tokenizer, seed))
            agent = Agent(http, f"{asked.session.openai_url}/chat/completions", random.Random(seed))
            await agent.play([{"role": "system", "content": "You are terse."}, user(f"Question {seed}?")])
            await asked.session.idle(10.0)
            samples = asked.session.samples(Sample())
            audit(samples, asked.model, agent.arrived)
            statistics = asked.session.statistics()
            counts["samples"] += len(samples)
            counts["retries"] += statistics["retries"]
            counts["forks"] += sum(count for name, count in statistics.items() if name.startswith("fork_"))

    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*[one(seed, http) for seed in range(NUM_SESSIONS)])
    assert counts["samples"] > NUM_SESSIONS and counts["forks"] > 100 and counts["retries"] > 10, counts


async def test_a_session_cannot_read_or_extend_another(opened: Callable[..., Asked]):
    one, other = opened("</think>secret<|im_end|>"), opened("</think>mine<|im_end|>")
    found = await one.client.responses.create(model="m", input="?")
    assert found.output_text == "secret"
    with pytest.raises(Exception, match="there is no response"):
        await other.client.responses.create(model="m", input="?", previous_response_id=found.id)
    with pytest.raises(Exception, match="there is no response"):
        await other.client.responses.retrieve(found.id)
    guessed = f"{one.session.openai_url.replace(one.session.secret, 'guess')}/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(guessed, json={"messages": [user("?")]}) as response:
        assert response.status == 400 and "no such session" in await response.text()
    assert (await other.ask(user("?"))).choices[0].message.content == "mine"
    assert len(one.audit()) == len(other.audit()) == 1 and len(one.session.secret) >= 32
