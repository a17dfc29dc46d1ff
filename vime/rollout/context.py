"""`Context`: the configuration, the served models and the services that every hook receives."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from vime.agent.workspace import TREE, Prepared, Source, Workspace, WorkspaceLike, prepare
from vime.chat.agent_clock import AgentClock
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.config import Constraints, RunConfig
from vime.errors import MalformedError, SampleError, SandboxError, VimeError, describe
from vime.gateway.gateway import PREFIX, session_app
from vime.gateway.session import AgentSession, Limits
from vime.gateway.session_manager import SessionManager
from vime.retrieval.retriever import Retriever
from vime.trajectory.trajectory import Trajectory
from vime.types import Sample, Sampling

__all__ = ["Context", "Sampling"]

SHOWN_SECONDS = 0.01
"""Shorter waits for a place are not in the timeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Given to every hook.

    `config.method` holds the method's own settings; `models["actor"]` is the trained model and every other served model is beside
    it by its name, including those behind a chat API, which refuse `complete`; `retriever` asks the retrieval service;
    `evaluation` is True outside training; `session_id` names this rollout to the router; `trace` takes what the timeline should
    show.
    """

    config: RunConfig
    evaluation: bool
    session_id: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """The fields of its row of data, with the text of the question as `question`; a reward has them too."""
    models: dict[str, ServedModel] = field(default_factory=dict)
    retriever: Retriever | None = None
    """The retrieval service, None if the run has none."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("vime.agent"))
    trace: Trace = field(default_factory=Trace)
    trajectory: Trajectory = field(default_factory=Trajectory)
    """Every call of this rollout to a model."""
    clock: AgentClock = field(default_factory=AgentClock)
    """The part of its time limit that the agent has used."""
    sessions: SessionManager = field(default_factory=SessionManager)
    """Opens sessions for agents that call models over HTTP."""
    kept: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Closed with the worker: for connections that its rollouts share."""

    def samples(self, sample: Sample, /, **metadata: Any) -> list[Sample]:
        """Trainable sequences with every token of the trained model exactly once, for any agents and sub-agents.

        After a time limit or an error, the tokens sampled until then are treated likewise. Raises SampleError if there
        are none.
        """
        if not (found := self.trajectory.samples(sample, metadata)):
            raise SampleError("nothing was sampled from the trained model: did the agent call context.models['actor']?")
        return found

    @asynccontextmanager
    async def session(
        self, model: str = "actor", *, limits: Limits | None = None, fork: bool | None = None
    ) -> AsyncIterator[AgentSession]:
        """Opens a session: a URL at which an agent calls a model. All its calls become part of the rollout.

            async with context.session() as session:
                await my_agent(base_url=session.openai_url, api_key=session.secret)
            return session.samples(sample)

        With `fork=False` a chat template that renders earlier messages differently begins no new sequence. `method.session` holds
        the limits and `fork` where they are not given. A model behind a chat API answers as well, without tokens.
        """
        found, own = self.models[model], self.config.method.session
        constrains, refuses = True, False
        if found.shows_tokens:
            with self.clock.stopped():  # the first session of a worker imports vLLM's parsers
                await self.sessions.reader(found)
            if model == "actor":  # also a baseline in its place, so that a table compares like with like
                refuses = self.config.gateway.constraints is Constraints.refuse and not self.evaluation
                constrains = self.config.gateway.constraints is Constraints.refuse and not refuses
        limits = limits or Limits(num_calls=own.num_calls, num_tokens=own.num_tokens)
        fork = own.fork if fork is None else fork
        async with self.sessions.open(found, limits=limits, fork=fork, constrains=constrains, refuses=refuses) as session:
            try:
                yield session
            except Exception as error:  # an agent fails because its session did, or its model
                if session.failure is not None:
                    raise session.failure from error
                if session.malformed and not isinstance(error, VimeError):
                    raise MalformedError(f"{describe(error)} (of the replies before it: {session.malformed})") from error
                raise
            finally:
                for name, count in session.statistics().items():
                    self.trace.counts[f"session_{name}"] += count

    async def prepared(self, source: Source, *, keep_git: bool = False, strip: int = 0) -> Prepared:
        """The prepared tree of a repository (`vime.agent.workspace.prepare`), which is made once and kept for later runs."""
        with self.clock.stopped():
            folder = self.config.workspace.cache_folder
            return await asyncio.to_thread(prepare, source, cache_folder=folder, keep_git=keep_git, strip=strip)

    @asynccontextmanager
    async def workspace(
        self,
        prepared: Prepared,
        *,
        binds: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
        folder: str = TREE,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Workspace]:
        """A workspace on a prepared repository, within the limits of `config.workspace`; all of it is gone when the block ends.

            async with context.workspace(prepared) as box, context.session() as session:
                async with context.reachable(session, box) as url:
                    end = await box.run(["agent", "--base-url", f"{url}/v1"], seconds=600, queues=False)
                patch = (await box.diff()).patch

        `binds` are paths of the host that can be read inside, with their places there; `places` and `folder` show the tree
        elsewhere (`Workspace.open`). What waits for the node's places stops the agent's clock. Raises SandboxError if the
        workspace does not start or is lost; the rollout is then run again.
        """
        opened = Workspace.open(
            prepared,
            self.config.workspace,
            binds=binds or {},
            places=places or {},
            folder=folder,
            environment=environment or {},
            waits=self._waiting,
        )
        async with opened as box:
            try:
                yield box
            except Exception as error:  # whatever an agent made of the loss of its workspace
                if box.lost and not isinstance(error, SandboxError):
                    raise SandboxError(box.lost) from error
                raise

    @asynccontextmanager
    async def reachable(self, session: AgentSession, box: WorkspaceLike) -> AsyncIterator[str]:
        """The URL by which programs in a workspace call a session (`{url}/v1` for OpenAI's clients, `{url}` for Anthropic's).

        They reach this session and no other.
        """
        async with box.serve(session_app(session)) as base:
            yield base + PREFIX.format(secret=session.secret)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Waits for a place; the wait does not count towards the agent's time limit."""
        arrived = time.time()
        with self.clock.stopped():
            yield
        if time.time() - arrived > SHOWN_SECONDS:
            self.trace.add("workspace", kind="queue", started=arrived)
