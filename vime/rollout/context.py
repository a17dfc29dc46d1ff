"""`Context`: the configuration, served models and session that every hook is given."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from vime.config import RunConfig
from vime.gateway.limits import Limits
from vime.gateway.session import AgentSession
from vime.gateway.sessions import Sessions
from vime.retrieval.client import Retriever
from vime.rollout.agent_clock import AgentClock
from vime.rollout.model import ServedModel, TokenModel
from vime.rollout.sampled import Sampled
from vime.rollout.trace import Trace
from vime.rollout.turn_log import TurnLog
from vime.types import Sampling

__all__ = ["Context", "Sampling"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Given to every hook.

    `config.method` holds the method's own settings; `models["actor"]` is the trained model and every other served model
    stands beside it by its name, also those behind a chat API, which refuse `complete`; `retriever` asks the retrieval service;
    `evaluation` is True outside training; `session_id` names this rollout to the router; `trace` takes what the timeline should
    show.
    """

    config: RunConfig
    evaluation: bool
    session_id: str
    models: dict[str, TokenModel] = field(default_factory=dict)
    retriever: Retriever | None = None
    """The retrieval service, None if the run has none."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("vime.agent"))
    trace: Trace = field(default_factory=Trace)
    turns: TurnLog = field(default_factory=TurnLog)
    clock: AgentClock = field(default_factory=AgentClock)
    """How much of its time limit the agent has used."""
    sampled: Sampled = field(default_factory=Sampled)
    """All tokens that the trained model has sampled in this session."""
    sessions: Sessions = field(default_factory=Sessions)
    """Opens sessions for agents that call models over HTTP."""

    @asynccontextmanager
    async def session(
        self, model: str = "actor", *, limits: Limits | None = None, fork: bool | None = None
    ) -> AsyncIterator[AgentSession]:
        """A URL under which an agent finds a model, and that keeps all of its calls.

            async with context.session() as session:
                await my_agent(base_url=session.openai_url, api_key=session.secret)
            return session.samples(sample)

        With `fork=False` a chat template that renders earlier messages differently begins no new sequence. `method.session` holds
        the limits and `fork` where they are not given. A model behind a chat API answers as well, without tokens.
        """
        found, own = self.models[model], self.config.method.session
        is_trained = False
        if isinstance(found, ServedModel):
            with self.clock.stopped():  # the first session of a worker imports vLLM's parsers
                await self.sessions.reader(found)
            turns = TurnLog()  # an agent outside gets no turns of an earlier attempt, but the seeds of a deterministic run
            turns.seeds = found.turns.seeds
            is_trained = found.sampled is not None and not self.evaluation
            found = replace(found, turns=turns)
        limits = limits or Limits(num_calls=own.num_calls, num_tokens=own.num_tokens)
        fork = own.fork if fork is None else fork
        async with self.sessions.open(found, limits=limits, fork=fork, constrains=not is_trained) as session:
            try:
                yield session
            except Exception as error:  # an agent fails because its session did
                if session.failure is None:
                    raise
                raise session.failure from error
            for name, count in session.statistics().items():
                self.trace.counts[f"session_{name}"] += count
