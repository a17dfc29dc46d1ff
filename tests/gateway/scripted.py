"""A model with scripted replies, and an agent's clients of a session with it."""

import asyncio
import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from vime.gateway.session import AgentSession
from vime.types import Sample, Turn


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


class Scripted:
    """A model that says given texts, `size` tokens at a time; a token's logprob encodes its turn and its place in the turn."""

    name = "actor"
    max_model_len = 2_000

    def __init__(self, tokenizer: Any, replies: list[str]) -> None:
        self.tokenizer, self.replies = tokenizer, replies
        self.template: dict[str, Any] = {}
        """Arguments of its chat template."""
        self.prompts: list[list[int]] = []
        self.constraints: list[dict[str, Any] | None] = []
        self.turns: list[Turn] = []
        self.turns_by_number: dict[int, Turn] = {}
        """By the number of their prompt, from 1."""
        self.error: Exception | None = None
        self.size = 3
        self.go = asyncio.Event()
        self.go.set()

    async def complete(
        self,
        token_ids: Any,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        constraint: dict[str, Any] | None = None,
        hear: Callable[[Turn], None] | None = None,
    ) -> Turn:
        if self.error is not None:
            raise self.error
        self.prompts.append(list(token_ids))
        self.constraints.append(constraint)
        ids = self.tokenizer.encode(self.replies.pop(0), add_special_tokens=False)
        kept, number = ids[:max_tokens], len(self.prompts)
        logprobs = [-float(1000 * number + place) for place in range(len(kept))]
        reason = "stop" if len(kept) == len(ids) else "length"
        turn = Turn(output_ids=kept, logprobs=logprobs, weight_versions=[1] * len(kept), finish_reason=reason)
        self.turns.append(turn)
        self.turns_by_number[number] = turn
        for start in range(0, len(kept), self.size):
            if hear is not None:
                hear(Turn(output_ids=kept[start : start + self.size], logprobs=logprobs[start : start + self.size]))
            await asyncio.sleep(0)
            await self.go.wait()
        return turn


class Asked:
    """A session behind a gateway, and clients of it."""

    def __init__(self, session: AgentSession, model: Scripted) -> None:
        self.session, self.model = session, model

    @cached_property
    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.session.openai_url, api_key=self.session.secret, max_retries=0)

    @cached_property
    def anthropic(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.session.anthropic_url, api_key=self.session.secret, max_retries=0)

    async def close(self) -> None:
        for name in ("client", "anthropic"):
            if name in self.__dict__:
                await getattr(self, name).close()

    async def ask(self, *messages: Any, **options: Any) -> Any:
        return await self.client.chat.completions.create(model="any", messages=list(messages), **options)

    async def send(self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None) -> Any:
        """The status and the JSON that plain HTTP brings; of a stream the list of its events."""
        url = self.session.url + path
        async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as response:
            text = await response.text()
            if "event-stream" in response.headers["Content-Type"]:
                data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
                return response.status, [json.loads(each) for each in data if each != "[DONE]"]
            return response.status, json.loads(text)

    def audit(self) -> list[Sample]:
        """Every token that was sampled is trained once."""
        samples = self.session.samples(Sample())
        pairs = [(token, logprob) for turn in self.model.turns for token, logprob in zip(turn.output_ids, turn.logprobs)]
        found = []
        for sample in samples:
            sample.to_columns()
            sample.validate()
            response = sample.tokens[-sample.response_length :]
            numbers = zip(response, sample.rollout_log_probs, sample.loss_mask)
            found += [(token, logprob) for token, logprob, mask in numbers if mask]
        assert sorted(found) == sorted(pairs)
        return samples
