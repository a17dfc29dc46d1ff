"""Sessions of agents with a sampler: each has a URL that OpenAI's and Anthropic's clients take, and keeps the tokens it sampled.

    opened = agents.open(id, weights, sampling={"temperature": 1.0})     # opened.openai_url, opened.anthropic_url
    …                                                                   # any agent, as it is
    sequences = agents.sequences(id)                                    # what a loss of the service reads, advantages apart

An agent talks to the gateway of the rollouts (`vime/gateway`), behind the port of the service.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from aiohttp import web

from vime.chat.served_model import ServedModel
from vime.errors import BadRequestError, SampleError
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession, Limits
from vime.gateway.session_manager import Parsers, SessionManager
from vime.model.load_tokenizer import load_tokenizer
from vime.service.training_service import Sampler, Service
from vime.serving.reply import Listener
from vime.types import Integers, Sample, Turn

ROUTE = "/agents"
"""Path of the service below which agents find their sessions."""
MOST_OPEN = 4096
Sampling = Callable[[], AbstractAsyncContextManager[Sampler]]
"""Opens a sampler for one request; its weights may be newer each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerClient:
    """A sampler in the place of `TokenClient`: each request gets the weights that the sampler has then."""

    sampling: Sampling

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
        """The continuation of a prompt. Raises BadRequestError, ServerError."""
        async with self.sampling() as sampler:
            return await sampler.sample(token_ids, sampling, request_id=request_id, listener=listener)


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
        self._open: dict[str, AgentSession] = {}

    def app(self) -> web.Application:
        """The routes of the agents, for `ROUTE`."""
        return self._gateway.app()

    async def open(self, id: str, sampling: Sampling, *, parameters: dict[str, Any], limits: Limits, base: str) -> AgentSession:
        """Opens a session; `parameters` (vLLM's names) are those of its calls, and `base` is the address of the service.

        Raises BadRequestError if too many are open.
        """
        if len(self._open) >= MOST_OPEN:
            raise BadRequestError(f"{len(self._open)} sessions of agents are open: end some of them first")
        config = self._service.config
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(config.model.checkpoint)
        model = ServedModel(
            client=SamplerClient(sampling=sampling),
            max_model_len=self._service.max_model_len,
            tokenizer=self._tokenizer,
            session=id,
            sampling=parameters,
            chat_template_args=config.model.chat_template_args,
            name=config.model.name,
        )
        model.load_reader = partial(self._readers.reader, model)
        session = AgentSession(model=model, reader=await self._readers.reader(model), limits=limits)
        self._gateway.open(session)
        session.url = f"{base}{ROUTE}{session.url}"
        self._open[id] = session
        return session

    def sequences(self, id: str) -> list[SampledSequence]:
        """What the agent has sampled so far; each token is in one of them. Raises BadRequestError if it sampled nothing."""
        try:
            return [_sequence(sample) for sample in self._open[id].samples(Sample())]
        except SampleError as error:
            raise BadRequestError(str(error)) from error

    def __contains__(self, id: str) -> bool:
        return id in self._open

    def close_all(self, session: str) -> None:
        """Ends the agents of a client's session."""
        for id in [id for id in self._open if id.startswith(f"{session}:")]:
            self.close(id)

    def close(self, id: str) -> None:
        """Ends a session; its URL answers no more."""
        self._gateway.close(self._open.pop(id))


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
