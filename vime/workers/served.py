"""Shared parts of one worker's agents: tokenizers, clients and the gate of the trained model; makes each rollout's context."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from vime.chat.agent_clock import AgentClock
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.chat.traffic import Traffic
from vime.config import RunConfig, ServingConfig
from vime.gateway.session_manager import Parsers, SessionManager
from vime.model.load_tokenizer import load_tokenizer
from vime.retrieval.retriever import NAME as RETRIEVAL
from vime.retrieval.retriever import Retriever
from vime.rollout.context import Context, Sampling
from vime.serving.calls import Calls
from vime.serving.clients import make_client
from vime.serving.endpoint import Address, Endpoint
from vime.serving.sampling import in_training, more_parameters, sampling_parameters
from vime.trajectory.trajectory import Trajectory
from vime.types import Prompt

ACTOR = "actor"
"""The name under which hooks find the trained model, or the baseline in its place."""
SERVER_TEMPERATURE = 1.0
"""vLLM's temperature if a request has none."""
MakeClient = Callable[[Endpoint, ServingConfig], Any]
"""Makes a `TokenClient`, or a `ChatClient` for an endpoint with a chat API."""


class ServedModels:
    """The served models of one worker."""

    def __init__(
        self,
        config: RunConfig,
        endpoints: dict[str, Endpoint],
        *,
        make_client: MakeClient = make_client,
        retrieval: Address | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.clock = AgentClock()
        """Stopped while the clock of any agent is stopped."""
        self._config = config
        self._endpoints = endpoints
        tokenizers = {name: endpoint.tokenizer for name, endpoint in endpoints.items() if endpoint.chat is None}
        self._tokenizers: dict[str, Any] = {name: load_tokenizer(path) for name, path in tokenizers.items()}
        self._make_client = make_client
        self._clients: dict[str, Any] = {}
        self._sessions = SessionManager(_parsers(config))
        self._kept = AsyncExitStack()
        self._retriever = Retriever(retrieval, config.retrieval) if retrieval is not None else None

    def context(
        self,
        session: str,
        *,
        sampling: Sampling,
        version: int,
        evaluation: bool = False,
        trace: Trace | None = None,
        trajectory: Trajectory | None = None,
        baseline: str | None = None,
        prompt: Prompt | None = None,
    ) -> Context:
        """The context of one session; tokens of the trained model are of weight `version` or newer.

        `sampling` applies to the trained model and to `baseline`, the name of a model that takes its place; every other model has
        its own (`serving.models.<name>.sampling`).
        """
        trace, trajectory = Trace() if trace is None else trace, trajectory or Trajectory()
        clock = AgentClock(self.clock)
        models: dict[str, ServedModel] = {}
        for name in self._endpoints:
            model = models[name] = self._model(name, session, sampling, version)
            model.trace, model.trajectory, model.attempt, model.clock = trace, trajectory, trajectory.attempt, clock
        if baseline is not None:
            models[ACTOR] = models[baseline].as_baseline(sampling, self._tokenizer_of_actor)
        return Context(
            config=self._config,
            evaluation=evaluation,
            session_id=session,
            row={} if prompt is None else prompt.fields,
            models=models,
            retriever=self._retriever,
            trace=trace,
            trajectory=trajectory,
            clock=clock,
            sessions=self._sessions,
            kept=self._kept,
        )

    async def prepare_sessions(self) -> None:
        """Imports the parsers of the trained model's replies, which takes seconds that the servers also need to start.

        Raises ConfigError for parsers that do not fit the model.
        """
        if ACTOR not in self._tokenizers:  # an evaluation of baselines alone
            return
        sampling = in_training(self._config)
        await self._sessions.reader(self._model(ACTOR, "", sampling, 0))

    def finish(self, sessions: list[str]) -> None:
        """Ends sessions, so that routers stop counting them as load."""
        for name, client in self._clients.items():
            if self._endpoints[name].chat is None:
                for session in sessions:
                    client.finish(session)

    async def close(self) -> None:
        """Closes the connections to all models, the sessions' listener, and what agents have kept."""
        async with self._kept:
            for client in self._clients.values():
                await client.close()
            await self._sessions.stop()

    def calls(self) -> dict[str, Calls]:
        """The calls to each model and to the retrieval service since the last call of this method."""
        counted = {name: client.calls for name, client in self._clients.items()}
        if self._retriever is not None:
            counted[RETRIEVAL] = self._retriever.calls
        return {name: calls.take() for name, calls in counted.items()}

    def _model(self, name: str, session: str, sampling: Sampling, version: int) -> ServedModel:
        endpoint, own = self._endpoints[name], self._config.serving.models[name]
        is_trained, shows_tokens = endpoint.trained, endpoint.chat is None
        model = ServedModel(
            client=self.client(name),
            tokenizer=self._tokenizers[name] if shows_tokens else None,
            max_model_len=endpoint.max_model_len,
            temperature=sampling.temperature if is_trained else SERVER_TEMPERATURE,
            top_p=sampling.top_p if is_trained else 1.0,
            sampling=more_parameters(sampling) if is_trained else sampling_parameters(own.sampling),
            records_experts=is_trained and sampling.routed_experts,
            session=session,
            minimum_version=version if is_trained else 0,
            chat_template_args=self._config.model.chat_template_args if is_trained else own.chat_template_args,
            name=name,
            shows_tokens=shows_tokens,
            trained=is_trained,
            traffic=self.traffic if is_trained else None,
        )
        if shows_tokens and self._sessions.reads(name):
            model.load_reader = partial(self._sessions.reader, model)
        return model

    def client(self, name: str) -> Any:
        """The client of a model, made inside the event loop that uses it."""
        if name not in self._clients:
            self._clients[name] = self._make_client(self._endpoints[name], self._config.serving)
        return self._clients[name]

    def tokenizer(self, name: str) -> Any:
        """The tokenizer of a model whose tokens are shown."""
        return self._tokenizers[name]

    def _tokenizer_of_actor(self) -> Any:
        if ACTOR not in self._tokenizers:  # an evaluation of baselines alone serves no trained model
            self._tokenizers[ACTOR] = load_tokenizer(self._config.model.checkpoint)
        return self._tokenizers[ACTOR]


def _parsers(config: RunConfig) -> dict[str, Parsers]:
    """vLLM's parsers of each served model."""
    own = Parsers(tool_parser=config.model.tool_parser, reasoning_parser=config.model.reasoning_parser)
    return {
        name: own if served.trained else Parsers(tool_parser=served.tool_parser, reasoning_parser=served.reasoning_parser)
        for name, served in config.serving.models.items()
    }
