"""`Context`: the configuration, served models and session that every hook is given."""

import logging
from dataclasses import dataclass, field

from vime.config import RunConfig
from vime.retrieval.client import Retriever
from vime.rollout.agent_clock import AgentClock
from vime.rollout.model import TokenModel
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
    `evaluation` is True outside training; `session` names this rollout to the router; `trace` takes what the timeline should
    show.
    """

    config: RunConfig
    evaluation: bool
    session: str
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
