"""Sessions of agents with a sampler: each has a URL that OpenAI's and Anthropic's clients take, and keeps the tokens it sampled.

    id, session = await agents.open(owner, weights, parameters={"temperature": 1.0}, …)   # session.openai_url, .anthropic_url
    …                                                                                   # any agent, as it is
    sequences = agents.sequences(id, owner)                                 # what a loss of the service reads, advantages apart

An agent talks to the gateway of the rollouts (`vime/gateway`), behind the port of the service.
"""

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from vime.chat.request import Refused
from vime.chat.served_model import ServedModel
from vime.errors import BadRequestError, SampleError
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession, Limits
from vime.gateway.session_manager import Parsers, SessionManager
from vime.model.load_tokenizer import load_tokenizer
from vime.service.call_queue import FullError
from vime.service.training_service import Sampler, Service
from vime.serving.reply import Listener
from vime.types import Integers, Sample, Turn

ROUTE = "/agents"
"""Path of the service below which agents find their sessions."""
MOST_OPEN = 4096
"""Sessions of one owner."""
Sampling = Callable[[], AbstractAsyncContextManager[Sampler]]
"""Opens a sampler for one request; its weights may be newer each time."""
TakeTokens = Callable[[int], None]
"""Counts the tokens that a request may have. Raises FullError if there is no room for them now."""


@dataclass(kw_only=True, slots=True)
class SamplerClient:
    """A sampler in the place of `TokenClient`: each request gets the weights that the sampler has then."""

    sampling: Sampling
    take_tokens: TakeTokens
    num_calls: int = 0
    """Requests that are being answered."""
    heard_at: float = field(default_factory=time.monotonic)
    """Time of the end of the last request, by the monotonic clock."""

    async def generate(
        self,
        token_ids: Integers,
        *,
        sampling: dict[str, Any],
        session_id: str,
        request_id: str,
        minimum_version: int = 0,
        listener: Listener | None = None,
    ) -> Turn:
        """The continuation of a prompt. Raises BadRequestError, ServerError, and Refused if a quota has no room for it now."""
        try:
            self.take_tokens(len(token_ids) + sampling["max_tokens"])
        except FullError as full:
            raise Refused(str(full), status=429, code="rate_limit_exceeded") from full
        self.num_calls += 1
        try:
            async with self.sampling() as sampler:
                return await sampler.sample(token_ids, sampling, request_id=request_id, listener=listener)
        finally:
            self.num_calls -= 1
            self.heard_at = time.monotonic()


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """An open session, its owner, and what it samples with. Agent(owner="a client's digest", session=…, client=…)"""

    owner: str
    session: AgentSession
    client: SamplerClient


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledSequence:
    """A sequence of an agent's calls in the form of a loss: entry i is about the token behind position i.

    Example of a prompt 5 9 and a reply 7 2: tokens 5 9 7, target_tokens 9 7 2, mask 0 1 1. An environment's tokens have mask 0.
    """

    tokens: list[int]
    target_tokens: list[int]
    logprobs: list[float]
    mask: list[int]
    weight_versions: list[int]


class AgentSessions:
    """The open sessions of agents."""

    def __init__(self, service: Service) -> None:
        model = service.config.model
        self._service, self._gateway = service, Gateway()
        self._readers = SessionManager(
            {model.name: Parsers(tool_parser=model.tool_parser, reasoning_parser=model.reasoning_parser)}
        )
        self._tokenizer: Any = None
        self._open: dict[str, Agent] = {}

    def app(self) -> web.Application:
        """The routes of the agents, for `ROUTE`."""
        return self._gateway.app()

    async def open(
        self,
        owner: str,
        sampling: Sampling,
        *,
        take_tokens: TakeTokens,
        parameters: dict[str, Any],
        limits: Limits,
        base: str,
    ) -> tuple[str, AgentSession]:
        """Opens a session of an owner; returns its id, too. `parameters` (vLLM's names) are those of all its calls, and `base`
        is the address of the service.

        Raises BadRequestError if the owner has too many.
        """
        if (number := sum(agent.owner == owner for agent in self._open.values())) >= MOST_OPEN:
            raise BadRequestError(f"{number} sessions of agents are open: end some of them first")
        config, id = self._service.config, f"agent-{secrets.token_hex(8)}"
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(config.model.checkpoint)
        client = SamplerClient(sampling=sampling, take_tokens=take_tokens)
        model = ServedModel(
            client=client,
            max_model_len=self._service.max_model_len,
            tokenizer=self._tokenizer,
            session=id,
            sampling=parameters,
            chat_template_args=config.model.chat_template_args,
            name=config.model.name,
        )
        session = AgentSession(model=model, reader=await self._readers.reader(model), limits=limits)
        self._gateway.open(session)
        session.url = f"{base}{ROUTE}{session.url}"
        self._open[id] = Agent(owner=owner, session=session, client=client)
        return id, session

    def sequences(self, id: str, owner: str) -> list[SampledSequence]:
        """The tokens that the agent has sampled so far, each in one sequence.

        Raises BadRequestError if it sampled nothing, or this owner has no such agent.
        """
        try:
            return [_sequence(sample) for sample in self._of(id, owner).session.samples(Sample())]
        except SampleError as error:
            raise BadRequestError(str(error)) from error

    def close(self, id: str, owner: str) -> None:
        """Ends a session; its URL answers no more. Raises BadRequestError if this owner has no such agent."""
        self._gateway.close(self._of(id, owner).session)
        del self._open[id]

    def close_silent(self, limit: float) -> None:
        """Ends the sessions that were silent since a time of the monotonic clock, and wait for no reply."""
        for id, agent in list(self._open.items()):
            if agent.client.heard_at < limit and not agent.client.num_calls:
                self.close(id, agent.owner)

    def _of(self, id: str, owner: str) -> Agent:
        agent = self._open.get(id)
        if agent is None or agent.owner != owner:
            raise BadRequestError(f"there is no agent {id}, or it has ended")
        agent.client.heard_at = time.monotonic()
        return agent


def _sequence(sample: Sample) -> SampledSequence:
    num_prompt = len(sample.tokens) - sample.response_length

    def behind_prompt(values: Any, kind: type) -> list[Any]:
        return [kind(0)] * (num_prompt - 1) + np.asarray(values, kind).tolist()

    tokens = np.asarray(sample.tokens).tolist()
    return SampledSequence(
        tokens=tokens[:-1],
        target_tokens=tokens[1:],
        logprobs=behind_prompt(sample.rollout_log_probs, float),
        mask=behind_prompt(sample.loss_mask, int),
        weight_versions=behind_prompt(sample.weight_versions, int),
    )
