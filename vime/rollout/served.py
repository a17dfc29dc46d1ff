"""What the agents of one worker share: tokenizers, clients and the gate of the trained model; makes each rollout's context."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vime.config import RunConfig, ServingConfig
from vime.retrieval.client import NAME as RETRIEVAL
from vime.retrieval.client import Retriever
from vime.rollout.agent_clock import AgentClock
from vime.rollout.chat_model import ChatModel
from vime.rollout.context import Context, Sampling
from vime.rollout.model import Client, Model
from vime.rollout.sampled import Sampled
from vime.rollout.trace import Trace
from vime.rollout.traffic import Traffic
from vime.rollout.turn_log import TurnLog
from vime.serving.calls import Calls
from vime.serving.client import TokenClient
from vime.serving.clients import make_client
from vime.serving.endpoint import Address, Endpoint
from vime.serving.external import ChatClient
from vime.serving.sampling import sampling_parameters

ACTOR = "actor"
"""Hooks know the trained model under this name, and what stands in its place."""
SERVER_TEMPERATURE = 1.0
"""What vLLM takes where none is sent."""
MakeClient = Callable[[Endpoint, ServingConfig], Client | ChatClient]


class Served:
    """The served models of one worker."""

    def __init__(
        self,
        config: RunConfig,
        endpoints: dict[str, Endpoint],
        *,
        make_client: MakeClient = make_client,
        retrieval: Address | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        self.traffic = Traffic()
        self.clock = AgentClock()
        """Stands while that of any agent does."""
        self._config = config
        self._endpoints = endpoints
        tokenizers = {name: endpoint.tokenizer for name, endpoint in endpoints.items() if endpoint.chat is None}
        self._tokenizers: dict[str, Any] = {name: AutoTokenizer.from_pretrained(path) for name, path in tokenizers.items()}
        self._make_client = make_client
        self._clients: dict[str, Client | ChatClient] = {}
        self._retriever = Retriever(retrieval, config.retrieval) if retrieval is not None else None

    def context(
        self,
        session: str,
        *,
        sampling: Sampling,
        version: int,
        evaluation: bool = False,
        trace: Trace | None = None,
        turns: TurnLog | None = None,
        baseline: str | None = None,
    ) -> Context:
        """What a hook gets in one session; tokens of the trained model are of weight `version` or newer.

        `sampling` is the trained model's, and that of `baseline`, the name of a model that stands in its place; every other model
        has its own (`serving.models.<name>.sampling`).
        """
        trace, turns = Trace() if trace is None else trace, TurnLog() if turns is None else turns
        clock, sampled = AgentClock(self.clock), Sampled()
        models = {name: self._model(name, session, sampling, version, trace, turns) for name in self._endpoints}
        for name, model in models.items():
            model.clock, model.sampled = clock, sampled if self._endpoints[name].trained else None
        if baseline is not None:
            models[ACTOR] = self._baseline(baseline, models[baseline], sampling)
        return Context(
            config=self._config,
            evaluation=evaluation,
            session=session,
            models=models,
            retriever=self._retriever,
            trace=trace,
            turns=turns,
            clock=clock,
            sampled=sampled,
        )

    def finish(self, sessions: list[str]) -> None:
        """The sessions are over: routers count them no longer."""
        for client in self._clients.values():
            if isinstance(client, TokenClient):
                for session in sessions:
                    client.finish(session)

    def _baseline(self, name: str, model: Model, sampling: Sampling) -> Model:
        """The model with the sampling that the trained one would have here."""
        if not isinstance(model, ChatModel):
            return replace(model, temperature=sampling.temperature, top_p=sampling.top_p, sampling={})
        if ACTOR not in self._tokenizers:  # an evaluation of baselines alone serves no trained model
            from transformers import AutoTokenizer

            self._tokenizers[ACTOR] = AutoTokenizer.from_pretrained(self._config.model.checkpoint)
        return ChatModel.of(
            self._endpoints[name],
            model.chat_client,
            model.session,
            model.trace,
            sampling={"temperature": sampling.temperature, "top_p": sampling.top_p},
            tokenizer=self._tokenizers[ACTOR],
        )

    def calls(self) -> dict[str, Calls]:
        """What was asked of each model, and of the retrieval service, since the last call of this."""
        counted = {name: client.calls for name, client in self._clients.items() if isinstance(client, (TokenClient, ChatClient))}
        if self._retriever is not None:
            counted[RETRIEVAL] = self._retriever.calls
        return {name: calls.take() for name, calls in counted.items()}

    def _model(self, name: str, session: str, sampling: Sampling, version: int, trace: Trace, turns: TurnLog) -> Model:
        endpoint = self._endpoints[name]
        if name not in self._clients:  # inside the event loop that uses it
            self._clients[name] = self._make_client(endpoint, self._config.serving)
        client, own = self._clients[name], self._config.serving.models[name]
        if isinstance(client, ChatClient):
            return ChatModel.of(endpoint, client, session, trace, sampling=sampling_parameters(own.sampling))
        return Model(
            client=client,
            tokenizer=self._tokenizers[name],
            max_model_len=endpoint.max_model_len,
            temperature=sampling.temperature if endpoint.trained else SERVER_TEMPERATURE,
            top_p=sampling.top_p if endpoint.trained else 1.0,
            sampling={} if endpoint.trained else sampling_parameters(own.sampling),
            session=session,
            minimum_version=version if endpoint.trained else 0,
            chat_template_args=self._config.model.chat_template_args if endpoint.trained else own.chat_template_args,
            name=name,
            trace=trace,
            turns=turns,
            traffic=self.traffic if endpoint.trained else None,
        )
